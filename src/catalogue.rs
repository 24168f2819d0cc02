//! Which series a field reads, as data: one YAML file per engine and router, embedded.
//!
//! `fields.yaml` says what a field is (its list, kind, unit and families on `/metrics`); every
//! other file says where one piece of software has it. This module loads and checks them; it
//! evaluates nothing and reads no Pod. Adding an engine of a known kind is adding a file to
//! [`FILES`].

use crate::exposition::Names;
use serde::Deserialize;
use std::collections::HashSet;
use std::sync::Arc;

/// The embedded files of engines and routers: name and text.
pub const FILES: &[(&str, &str)] = &[
    ("vllm.yaml", include_str!("catalogue/vllm.yaml")),
    ("sglang.yaml", include_str!("catalogue/sglang.yaml")),
    ("llm-d-router.yaml", include_str!("catalogue/llm-d-router.yaml")),
    ("vllm-router.yaml", include_str!("catalogue/vllm-router.yaml")),
    ("sglang-gateway.yaml", include_str!("catalogue/sglang-gateway.yaml")),
];

/// The embedded file of the fields themselves: name and text.
pub const FIELDS: (&str, &str) = ("fields.yaml", include_str!("catalogue/fields.yaml"));

/// A catalogue file that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("catalogue file {file}, entry {entry}, key {key}: {what}")]
pub struct Error {
    /// The file's name.
    pub file: String,
    /// The entry: a field's name, an argument's, or its position.
    pub entry: String,
    /// The key inside the entry.
    pub key: String,
    /// What is wrong, with the value.
    pub what: String,
}

/// The list of the JSON object that a field goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum List {
    /// `processing[]`
    Processing,
    /// `queueing[]`
    Queueing,
    /// `cacheHits[]`
    CacheHits,
    /// `latency[]`
    Latency,
    /// `traffic[]`
    Traffic,
    /// `transfer[]`
    Transfer,
}

/// How a field's value comes from its series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A value of now.
    Gauge,
    /// Hits over queries of a window.
    Ratio,
    /// Sum over count of a histogram's window.
    Mean,
    /// Increase of a counter over the window's seconds.
    Rate,
    /// One rate's increase over another's.
    Share,
}

/// What of a field a total sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TotalPart {
    /// A ratio's hits.
    Hits,
    /// A ratio's queries.
    Queries,
    /// A histogram's sum, in base units.
    Sum,
    /// A histogram's count.
    Count,
    /// A counter's value.
    Value,
}

/// Which ranks' label sets count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ranks {
    /// One of those that repeat the same requests.
    #[default]
    One,
    /// All of them.
    All,
}

/// One monotonic sum that a field exports.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Total {
    /// What is summed.
    pub part: TotalPart,
    /// The family, without `modeldeployment_`.
    pub family: String,
    /// Whose label sets count.
    #[serde(default)]
    pub ranks: Ranks,
}

/// The families of a ratio's window.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct WindowFamilies {
    /// Hit tokens of the window.
    pub hits: String,
    /// Query tokens of the window.
    pub queries: String,
}

/// What a field is, whichever software it is read from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Definition {
    /// Its name in the JSON; for a ratio the cache scope.
    pub name: String,
    /// The list it goes to.
    pub list: List,
    /// How its value comes about.
    pub kind: Kind,
    /// The JSON's unit.
    pub unit: String,
    /// From the JSON's unit to the base unit of `/metrics`.
    #[serde(default = "one")]
    pub factor: f64,
    /// The JSON's mean takes every rank's observations, each being its own shard.
    #[serde(default)]
    pub shards: bool,
    /// The gauge on `/metrics`, without `modeldeployment_`.
    pub gauge: String,
    /// The gauge is all ranks' sum over one rank's count instead of the JSON's mean.
    #[serde(default)]
    pub gauge_per_transfer: bool,
    /// A ratio's window families.
    #[serde(default)]
    pub window: Option<WindowFamilies>,
    /// The monotonic sums it exports.
    #[serde(default)]
    pub totals: Vec<Total>,
}

fn one() -> f64 {
    1.0
}

/// Whether a file describes an engine or a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SoftwareKind {
    /// Runs in the Pods of roles.
    Engine,
    /// Runs in router Pods.
    Router,
}

/// One argument that a rule asks about.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ArgumentSpec {
    /// Its long name without the dashes.
    pub name: String,
    /// The shortest abbreviation that the software's parser takes.
    #[serde(default)]
    pub shortest: Option<String>,
    /// `--name.key` gives it too.
    #[serde(default)]
    pub dotted: bool,
    /// The values that rules ask about; no other is kept.
    #[serde(default)]
    pub values: Vec<String>,
    /// The value it has when it is not given.
    #[serde(default)]
    pub default: Option<String>,
}

/// From which Pods a field is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Read {
    /// Every one.
    EveryRole,
    /// Every one but the prefill half of a pair.
    NotPrefillHalf,
    /// Every one but the decode half of a pair.
    NotDecodeHalf,
    /// The prefill half of a pair.
    PrefillHalf,
    /// The decode half of a pair.
    DecodeHalf,
    /// Routers that serve no pair.
    OutsideAPair,
    /// Routers that serve a pair.
    InAPair,
}

/// A label filter; without one every label set counts.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Filter {
    /// The label.
    pub label: String,
    /// The values that count.
    #[serde(default, rename = "in")]
    pub values: Vec<String>,
    /// The whole numbers that count, both ends included.
    #[serde(default)]
    pub between: Option<(u32, u32)>,
    /// The whole numbers that are valid at all; a sample with another value is left out.
    #[serde(default)]
    pub valid: Option<(u32, u32)>,
}

fn whole_number(text: &str) -> Option<u32> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

impl Filter {
    /// Whether a label set with this value of the label (empty when it has none) counts.
    pub fn matches(&self, value: &str) -> bool {
        let in_range = |(low, high)| whole_number(value).is_some_and(|n| (low..=high).contains(&n));
        self.values.iter().any(|v| v == value) || self.between.is_some_and(in_range)
    }

    /// Whether a sample with this value of the label is valid; one that is not is left out.
    pub fn is_valid(&self, value: &str) -> bool {
        self.valid.is_none_or(|(low, high)| whole_number(value).is_some_and(|n| (low..=high).contains(&n)))
    }
}

/// What has to hold for a rule; everything given has to.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct When {
    /// Whether a KV cache pool is attached.
    #[serde(default)]
    pub pool: Option<bool>,
    /// Whether the deployment is a pair.
    #[serde(default)]
    pub pair: Option<bool>,
    /// Which half of a pair the Pod is: `prefill` or `decode`.
    #[serde(default)]
    pub half: Option<HalfName>,
    /// None of these arguments (`name` or `name=value`) is given.
    #[serde(default)]
    pub without: Vec<String>,
    /// This counter is at zero or absent in the read.
    #[serde(default)]
    pub unmoved: Option<String>,
    /// This series is in the read.
    #[serde(default)]
    pub present: Option<String>,
    /// No label set of this series has this label.
    #[serde(default)]
    pub without_label: Option<SeriesLabel>,
    /// Whether the Pod is known to be idle in the window.
    #[serde(default)]
    pub idle: Option<bool>,
}

/// A half of a pair as the catalogue writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HalfName {
    /// The prefill half.
    Prefill,
    /// The decode half.
    Decode,
}

/// A label of a series.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SeriesLabel {
    /// The series.
    pub series: String,
    /// The label.
    pub label: String,
}

/// A field is not read here: the sentence that says why.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Unsupported {
    /// When it holds.
    pub when: When,
    /// The sentence for people.
    pub reason: String,
}

/// Why a series may be absent without being an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AbsentCode {
    /// A labelled series before its first event; never one that was seen.
    NotExportedYet,
    /// The configuration does not provide it.
    UnsupportedSource,
}

/// A field's series is absent: the code and sentence instead of `metric-absent`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Absent {
    /// When it holds.
    pub when: When,
    /// The code.
    pub code: AbsentCode,
    /// The sentence for people.
    pub reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPart {
    series: String,
    #[serde(default, rename = "where")]
    filter: Option<Filter>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawAlternative {
    #[serde(default)]
    series: Option<String>,
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    hits: Option<RawPart>,
    #[serde(default)]
    queries: Option<RawPart>,
    #[serde(default, rename = "where")]
    filter: Option<Filter>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawShare {
    of: String,
    over: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawField {
    field: String,
    read: Read,
    #[serde(default)]
    series: Option<String>,
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    hits: Option<RawPart>,
    #[serde(default)]
    queries: Option<RawPart>,
    #[serde(default, rename = "where")]
    filter: Option<Filter>,
    #[serde(default)]
    share: Option<RawShare>,
    #[serde(default)]
    formerly: Vec<RawAlternative>,
    #[serde(default)]
    idle: Option<String>,
    #[serde(default)]
    unsupported: Vec<Unsupported>,
    #[serde(default)]
    absent: Vec<Absent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawSoftware {
    kind: SoftwareKind,
    names: Vec<String>,
    #[serde(default)]
    ranks: Vec<String>,
    #[serde(default)]
    total_label: Option<String>,
    #[serde(default)]
    arguments: Vec<serde_json::Value>,
    fields: Vec<serde_json::Value>,
}

/// What a family of series is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// A value of now.
    Gauge,
    /// A monotonic value.
    Counter,
    /// A monotonic sum and count.
    Histogram,
}

/// One series that the software exports, with the ids of its samples' names.
#[derive(Debug, Clone)]
pub struct Family {
    /// The name the specification uses.
    pub series: String,
    /// What it is.
    pub kind: FamilyKind,
    /// Ids of the value's names, the specification's spelling first, then with or without
    /// `_total`: of a histogram, of its count. The first one present is read.
    pub values: Vec<usize>,
    /// Of a histogram, the id of its sum.
    pub sum: Option<usize>,
    /// The id of its `_created` samples.
    pub created: Option<usize>,
    /// Of a histogram, the id of a gauge under its name: the series in another form.
    pub other_form: Option<usize>,
    /// Samples whose label is not valid are left out.
    pub valid: Option<Filter>,
}

/// One input of a field.
#[derive(Debug, Clone)]
pub struct Part {
    /// Index into [`Software::families`].
    pub family: usize,
    /// Which label sets count.
    pub filter: Option<Filter>,
}

/// One spelling of a field's series.
#[derive(Debug, Clone)]
pub struct Alternative {
    /// The JSON's `source`.
    pub source: String,
    /// The inputs: one, or hits and queries.
    pub parts: Vec<Part>,
}

/// Where one piece of software has a field.
#[derive(Debug, Clone)]
pub struct Field {
    /// What the field is.
    pub definition: Arc<Definition>,
    /// From which Pods it is read.
    pub read: Read,
    /// Its series, the specification's first; the first one present is read. None for a share.
    pub alternatives: Vec<Alternative>,
    /// Of a share: the indices of the field above and of the field below the line.
    pub share: Option<(usize, usize)>,
    /// The index of the TTFT field that vouches for a Pod being idle.
    pub idle: Option<usize>,
    /// When the field is not read; the first that holds counts.
    pub unsupported: Vec<Unsupported>,
    /// What its absence means; the first that holds counts, `metric-absent` if none does.
    pub absent: Vec<Absent>,
}

/// One engine or router: its names, arguments and fields.
#[derive(Debug, Clone)]
pub struct Software {
    /// The catalogue file's name.
    pub file: String,
    /// Engine or router.
    pub kind: SoftwareKind,
    /// The names it goes by in a deployment, in the spelling that is exported.
    pub names: Vec<String>,
    /// The labels that tell ranks apart which repeat the same requests.
    pub ranks: Vec<String>,
    /// The label whose empty value marks the total of the sets that have one.
    pub total_label: Option<String>,
    /// The arguments that rules ask about.
    pub arguments: Vec<ArgumentSpec>,
    /// The series that fields and rules read.
    pub families: Vec<Family>,
    /// The fields in the file's order.
    pub fields: Vec<Field>,
    /// The wanted sample names.
    pub wanted: Names,
    /// The id of `process_start_time_seconds`.
    pub process_start: usize,
}

impl Software {
    /// The index of a series' family, by the specification's name.
    pub fn family(&self, series: &str) -> Option<usize> {
        self.families.iter().position(|family| family.series == series)
    }
}

/// Every engine and router that the exporter knows.
#[derive(Debug, Clone)]
pub struct Catalogue {
    /// What the fields are.
    pub definitions: Vec<Arc<Definition>>,
    /// The engines and routers.
    pub software: Vec<Arc<Software>>,
}

/// The name of the series that gives a process' start; it resets every counter of a Pod.
const PROCESS_START: &str = "process_start_time_seconds";

impl Catalogue {
    /// The catalogue that is built in.
    pub fn embedded() -> Result<Catalogue, Error> {
        Catalogue::load(FIELDS, FILES)
    }

    /// A catalogue of these files: the fields' and one per engine or router, as name and text.
    pub fn load(fields: (&str, &str), files: &[(&str, &str)]) -> Result<Catalogue, Error> {
        let (name, text) = fields;
        let entries: Vec<serde_json::Value> = parse(name, "(file)", text)?;
        let mut definitions: Vec<Arc<Definition>> = Vec::new();
        for (index, value) in entries.into_iter().enumerate() {
            let definition: Definition = entry(name, "name", index, value)?;
            if definitions.iter().any(|d| d.name == definition.name) {
                return Err(error(name, &definition.name, "name", "is given twice"));
            }
            definitions.push(Arc::new(definition));
        }
        let mut software: Vec<Arc<Software>> = Vec::new();
        for (name, text) in files {
            let loaded = load_software(name, text, &definitions)?;
            let taken = |n: &String| software.iter().any(|s: &Arc<Software>| s.kind == loaded.kind && s.is_named(n));
            if let Some(twice) = loaded.names.iter().find(|n| taken(n)) {
                return Err(error(name, "(file)", "names", &format!("`{twice}` is in another file already")));
            }
            software.push(Arc::new(loaded));
        }
        Ok(Catalogue { definitions, software })
    }

    /// The software of a kind that goes by this name, in any case, with the name's own spelling.
    pub fn find(&self, kind: SoftwareKind, name: &str) -> Option<(&Arc<Software>, &str)> {
        self.software.iter().filter(|software| software.kind == kind).find_map(|software| {
            let spelling = software.names.iter().find(|n| n.eq_ignore_ascii_case(name))?;
            Some((software, spelling.as_str()))
        })
    }

    /// Every name of a kind, for messages that list what is accepted.
    pub fn names(&self, kind: SoftwareKind) -> Vec<&str> {
        let of_kind = self.software.iter().filter(|software| software.kind == kind);
        of_kind.flat_map(|software| software.names.iter().map(String::as_str)).collect()
    }
}

impl Software {
    fn is_named(&self, name: &str) -> bool {
        self.names.iter().any(|n| n.eq_ignore_ascii_case(name))
    }
}

fn error(file: &str, entry: &str, key: &str, what: &str) -> Error {
    Error { file: file.to_owned(), entry: entry.to_owned(), key: key.to_owned(), what: what.to_owned() }
}

fn parse<T: for<'de> Deserialize<'de>>(file: &str, entry: &str, text: &str) -> Result<T, Error> {
    let value: serde_json::Value =
        serde_saphyr::from_str(text).map_err(|e| error(file, entry, "(file)", &e.to_string()))?;
    from_value(file, entry, value)
}

fn from_value<T: for<'de> Deserialize<'de>>(file: &str, entry: &str, value: serde_json::Value) -> Result<T, Error> {
    serde_path_to_error::deserialize(value).map_err(|e| {
        let key = e.path().to_string();
        error(file, entry, if key == "." { "(entry)" } else { &key }, &e.inner().to_string())
    })
}

/// Deserializes one entry, named in errors by its `key` or else by its position.
fn entry<T: for<'de> Deserialize<'de>>(
    file: &str,
    key: &str,
    index: usize,
    value: serde_json::Value,
) -> Result<T, Error> {
    let name = value.get(key).and_then(|v| v.as_str()).map_or_else(|| format!("#{}", index + 1), str::to_owned);
    from_value(file, &name, value)
}

/// Collects the families that a file's fields and rules name.
struct Families {
    names: Vec<String>,
    families: Vec<Family>,
}

impl Families {
    fn id(&mut self, name: String) -> usize {
        self.names.iter().position(|n| *n == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }

    fn add(&mut self, series: &str, kind: FamilyKind) -> Option<usize> {
        if let Some(index) = self.families.iter().position(|f| f.series == series) {
            return (self.families[index].kind == kind).then_some(index);
        }
        let base = series.strip_suffix("_total").unwrap_or(series);
        let family = match kind {
            FamilyKind::Gauge => Family {
                series: series.to_owned(),
                kind,
                values: vec![self.id(series.to_owned())],
                sum: None,
                created: None,
                other_form: None,
                valid: None,
            },
            FamilyKind::Counter => {
                let total = format!("{base}_total");
                let mut values = vec![self.id(series.to_owned())];
                values.push(self.id(if series == base { total } else { base.to_owned() }));
                let created = Some(self.id(format!("{base}_created")));
                Family { series: series.to_owned(), kind, values, sum: None, created, other_form: None, valid: None }
            }
            FamilyKind::Histogram => Family {
                series: series.to_owned(),
                kind,
                values: vec![self.id(format!("{series}_count"))],
                sum: Some(self.id(format!("{series}_sum"))),
                created: Some(self.id(format!("{series}_created"))),
                other_form: Some(self.id(series.to_owned())),
                valid: None,
            },
        };
        self.families.push(family);
        Some(self.families.len() - 1)
    }
}

fn load_software(file: &str, text: &str, definitions: &[Arc<Definition>]) -> Result<Software, Error> {
    let raw: RawSoftware = parse(file, "(file)", text)?;
    if raw.names.is_empty() || raw.names.iter().any(String::is_empty) {
        return Err(error(file, "(file)", "names", "needs at least one name, none of them empty"));
    }
    let mut arguments: Vec<ArgumentSpec> = Vec::new();
    for (index, value) in raw.arguments.into_iter().enumerate() {
        arguments.push(entry(file, "name", index, value)?);
    }
    let mut raw_fields: Vec<RawField> = Vec::new();
    for (index, value) in raw.fields.into_iter().enumerate() {
        raw_fields.push(entry(file, "field", index, value)?);
    }
    let position = |name: &str| raw_fields.iter().position(|f| f.field == name);
    let mut families = Families { names: Vec::new(), families: Vec::new() };
    let mut fields: Vec<Field> = Vec::new();
    let mut seen = HashSet::new();
    for raw in &raw_fields {
        let fail = |key: &str, what: &str| error(file, &raw.field, key, what);
        if !seen.insert(raw.field.as_str()) {
            return Err(fail("field", "is given twice"));
        }
        let definition = definitions.iter().find(|d| d.name == raw.field);
        let definition = definition.ok_or_else(|| fail("field", &format!("`{}` is not in fields.yaml", raw.field)))?;
        let own = RawAlternativeRef {
            series: raw.series.as_ref(),
            source: raw.source.as_ref(),
            hits: raw.hits.as_ref(),
            queries: raw.queries.as_ref(),
            filter: raw.filter.as_ref(),
        };
        let mut alternatives = Vec::new();
        let mut share = None;
        if definition.kind == Kind::Share {
            let raw_share =
                raw.share.as_ref().ok_or_else(|| fail("share", "is missing: a share needs `of` and `over`"))?;
            let find = |key: &str, name: &str| {
                let index = position(name).ok_or_else(|| fail(key, &format!("`{name}` is no field of this file")))?;
                let rate = definitions.iter().any(|d| d.name == name && d.kind == Kind::Rate);
                if rate { Ok(index) } else { Err(fail(key, &format!("`{name}` is no rate"))) }
            };
            share = Some((find("share.of", &raw_share.of)?, find("share.over", &raw_share.over)?));
        } else {
            if raw.share.is_some() {
                return Err(fail("share", "belongs to a field of the kind share only"));
            }
            alternatives.push(alternative(&fail, "", definition.kind, &own, &mut families)?);
            for (index, former) in raw.formerly.iter().enumerate() {
                let former = RawAlternativeRef {
                    series: former.series.as_ref(),
                    source: former.source.as_ref(),
                    hits: former.hits.as_ref(),
                    queries: former.queries.as_ref(),
                    filter: former.filter.as_ref(),
                };
                let key = format!("formerly[{index}].");
                alternatives.push(alternative(&fail, &key, definition.kind, &former, &mut families)?);
            }
        }
        let idle = match &raw.idle {
            None => None,
            Some(name) => {
                Some(position(name).ok_or_else(|| fail("idle", &format!("`{name}` is no field of this file")))?)
            }
        };
        fields.push(Field {
            definition: Arc::clone(definition),
            read: raw.read,
            alternatives,
            share,
            idle,
            unsupported: raw.unsupported.clone(),
            absent: raw.absent.clone(),
        });
    }
    check_rules(file, &fields, &arguments, &families)?;
    let process_start = families.id(PROCESS_START.to_owned());
    let Families { names, families } = families;
    Ok(Software {
        file: file.to_owned(),
        kind: raw.kind,
        names: raw.names,
        ranks: raw.ranks,
        total_label: raw.total_label,
        arguments,
        families,
        fields,
        wanted: Names::new(names),
        process_start,
    })
}

struct RawAlternativeRef<'a> {
    series: Option<&'a String>,
    source: Option<&'a String>,
    hits: Option<&'a RawPart>,
    queries: Option<&'a RawPart>,
    filter: Option<&'a Filter>,
}

fn alternative(
    fail: &dyn Fn(&str, &str) -> Error,
    prefix: &str,
    kind: Kind,
    raw: &RawAlternativeRef<'_>,
    families: &mut Families,
) -> Result<Alternative, Error> {
    let key = |name: &str| format!("{prefix}{name}");
    let mut part = |name: &str, series: &str, filter: Option<&Filter>| {
        let family_kind = match kind {
            Kind::Gauge => FamilyKind::Gauge,
            Kind::Mean => FamilyKind::Histogram,
            Kind::Ratio | Kind::Rate | Kind::Share => FamilyKind::Counter,
        };
        let family = families.add(series, family_kind);
        let family =
            family.ok_or_else(|| fail(&key(name), &format!("`{series}` has another kind in another entry")))?;
        if let Some(filter) = filter {
            if filter.values.is_empty() == filter.between.is_none() {
                return Err(fail(&key("where"), "needs either `in` or `between`"));
            }
            if filter.valid.is_some() {
                families.families[family].valid = Some(filter.clone());
            }
        }
        Ok(Part { family, filter: filter.cloned() })
    };
    if kind == Kind::Ratio {
        let missing = |name: &str| fail(&key(name), "is missing: a ratio needs `source`, `hits` and `queries`");
        if raw.series.is_some() || raw.filter.is_some() {
            return Err(fail(&key("series"), "a ratio names its series in `hits` and `queries`"));
        }
        let source = raw.source.ok_or_else(|| missing("source"))?;
        let hits = raw.hits.ok_or_else(|| missing("hits"))?;
        let queries = raw.queries.ok_or_else(|| missing("queries"))?;
        let parts = vec![
            part("hits.series", &hits.series, hits.filter.as_ref())?,
            part("queries.series", &queries.series, queries.filter.as_ref())?,
        ];
        return Ok(Alternative { source: source.clone(), parts });
    }
    if raw.hits.is_some() || raw.queries.is_some() || raw.source.is_some() {
        return Err(fail(&key("hits"), "`source`, `hits` and `queries` belong to a ratio only"));
    }
    let series = raw.series.ok_or_else(|| fail(&key("series"), "is missing"))?;
    Ok(Alternative { source: series.clone(), parts: vec![part("series", series, raw.filter)?] })
}

/// Checks that rules name series, arguments and values of their own file.
fn check_rules(file: &str, fields: &[Field], arguments: &[ArgumentSpec], families: &Families) -> Result<(), Error> {
    let known = |series: &str| families.families.iter().any(|f| f.series == series);
    for field in fields {
        let name = &field.definition.name;
        let unsupported = field.unsupported.iter().map(|rule| ("unsupported", &rule.when));
        let absent = field.absent.iter().map(|rule| ("absent", &rule.when));
        for (key, when) in unsupported.chain(absent) {
            let label = when.without_label.as_ref().map(|l| ("without-label", &l.series));
            let present = when.present.as_ref().map(|s| ("present", s));
            let unmoved = when.unmoved.as_ref().map(|s| ("unmoved", s));
            for (what, series) in [label, present, unmoved].into_iter().flatten() {
                if !known(series) {
                    let key = format!("{key}.when.{what}");
                    return Err(error(file, name, &key, &format!("`{series}` is no series of a field of this file")));
                }
            }
            for argument in &when.without {
                let (argument_name, value) =
                    argument.split_once('=').map_or((argument.as_str(), None), |(n, v)| (n, Some(v)));
                let spec = arguments.iter().find(|a| a.name == argument_name);
                let fits = spec.is_some_and(|s| value.is_none_or(|v| s.values.iter().any(|known| known == v)));
                if !fits {
                    let key = format!("{key}.when.without");
                    return Err(error(file, name, &key, &format!("`{argument}` is not in this file's `arguments`")));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_catalogue_loads() {
        let catalogue = Catalogue::embedded().unwrap();
        assert_eq!(catalogue.names(SoftwareKind::Engine), ["vLLM", "vLLM-Ascend", "SGLang"]);
        assert_eq!(catalogue.names(SoftwareKind::Router), ["llm-d-router", "vllm-router", "sglang-gateway"]);
    }

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/catalogue");
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        let mut embedded: Vec<&str> = FILES.iter().map(|(name, _)| *name).chain([FIELDS.0]).collect();
        embedded.sort_unstable();
        assert_eq!(names, embedded);
    }

    #[test]
    fn names_are_found_in_any_case_and_spelled_as_in_the_file() {
        let catalogue = Catalogue::embedded().unwrap();
        let (software, spelling) = catalogue.find(SoftwareKind::Engine, "VLLM-ascend").unwrap();
        assert_eq!((software.file.as_str(), spelling), ("vllm.yaml", "vLLM-Ascend"));
        assert!(catalogue.find(SoftwareKind::Router, "vLLM").is_none());
    }

    #[test]
    fn a_broken_file_is_an_error_with_file_entry_and_key() {
        let head = "kind: engine\nnames: [X]\nfields:\n";
        let running = "  - {field: running, read: every-role, series: x_running}\n";
        let local = "  - field: local-prefix\n    read: every-role\n    source: x\n";
        // (text after the head, entry, key, part of the message)
        let cases = [
            ("  - {field: runing, read: every-role, series: x}", "runing", "field", "`runing` is not in fields.yaml"),
            ("  - {read: every-role, series: x}", "#1", "(entry)", "missing field `field`"),
            ("  - {field: running, series: x}", "running", "(entry)", "missing field `read`"),
            ("  - {field: running, read: some-roles, series: x}", "running", "read", "unknown variant `some-roles`"),
            ("  - {field: running, read: every-role}", "running", "series", "is missing"),
            ("  - {field: running, read: every-role, serie: x}", "running", "serie", "unknown field `serie`"),
            ("  - {field: running, read: every-role, series: 5}", "running", "series", "invalid type"),
            (
                "  - {field: running, read: every-role, series: x, hits: {series: other}}",
                "running",
                "hits",
                "ratio only",
            ),
            ("  - {field: running, read: every-role, series: x, idle: ttft}", "running", "idle", "`ttft` is no field"),
            (
                "  - {field: running, read: every-role, series: x, absent: [{when: {present: other}, code: not-exported-yet, reason: r}]}",
                "running",
                "absent.when.present",
                "`other` is no series",
            ),
            (
                "  - {field: running, read: every-role, series: x, unsupported: [{when: {without: [flag]}, reason: r}]}",
                "running",
                "unsupported.when.without",
                "`flag` is not in this file's `arguments`",
            ),
            (
                "  - {field: running, read: every-role, series: x, unsupported: [{when: {}}]}",
                "running",
                "unsupported[0]",
                "missing field `reason`",
            ),
            (&format!("{running}{running}"), "running", "field", "is given twice"),
            (&format!("{local}    hits: {{series: h}}\n"), "local-prefix", "queries", "is missing"),
            (
                &format!("{local}    hits: {{series: h, where: {{label: mode}}}}\n    queries: {{series: q}}\n"),
                "local-prefix",
                "where",
                "either `in` or `between`",
            ),
            (
                &format!("{running}  - {{field: requests, read: every-role, series: x_running}}\n"),
                "requests",
                "series",
                "another kind",
            ),
            ("  - {field: error-ratio, read: every-role}", "error-ratio", "share", "is missing"),
            (
                "  - {field: error-ratio, read: every-role, share: {of: errors, over: requests}}",
                "error-ratio",
                "share.of",
                "`errors` is no field",
            ),
            ("  {", "(file)", "(file)", ""),
        ];
        for (text, entry, key, message) in cases {
            let text = format!("{head}{text}");
            let error = Catalogue::load(FIELDS, &[("x.yaml", &text)]).unwrap_err();
            assert_eq!(
                (error.file.as_str(), error.entry.as_str(), error.key.as_str()),
                ("x.yaml", entry, key),
                "{error}"
            );
            assert!(error.what.contains(message), "{error}");
        }
    }

    #[test]
    fn a_name_in_two_files_is_an_error() {
        let file = "kind: router\nnames: [VLLM-Router]\nfields: []\n";
        let files = [FILES[3], ("other.yaml", file)];
        let error = Catalogue::load(FIELDS, &files).unwrap_err();
        assert_eq!((error.file.as_str(), error.key.as_str()), ("other.yaml", "names"));
    }

    #[test]
    fn broken_fields_are_an_error_with_entry_and_key() {
        let fields = "- {name: a, list: nowhere, kind: gauge, unit: x, gauge: other}";
        let error = Catalogue::load(("fields.yaml", fields), &[]).unwrap_err();
        assert_eq!((error.file.as_str(), error.entry.as_str(), error.key.as_str()), ("fields.yaml", "a", "list"));
    }

    #[test]
    fn an_engine_of_a_known_kind_is_one_more_file() {
        let file =
            "kind: engine\nnames: [NewEngine]\nfields:\n  - {field: running, read: every-role, series: new_running}\n";
        let catalogue = Catalogue::load(FIELDS, &[("new.yaml", file)]).unwrap();
        let (software, _) = catalogue.find(SoftwareKind::Engine, "newengine").unwrap();
        assert!(software.wanted.id("new_running").is_some());
        assert!(software.wanted.id("process_start_time_seconds").is_some());
    }

    #[test]
    fn filters_take_values_and_ranges() {
        let range = Filter { label: "c".into(), values: vec![], between: Some((500, 599)), valid: Some((100, 599)) };
        for (value, matches, valid) in [
            ("500", true, true),
            ("599", true, true),
            ("499", false, true),
            ("600", false, false),
            ("5xx", false, false),
            ("", false, false),
            ("+500", false, false),
        ] {
            assert_eq!((range.matches(value), range.is_valid(value)), (matches, valid), "{value}");
        }
    }

    /// One reason, one sentence: the contract wants each case told apart.
    #[test]
    fn reasons_of_a_field_are_distinct() {
        for software in &Catalogue::embedded().unwrap().software {
            for field in &software.fields {
                let reasons: Vec<&str> = field.unsupported.iter().map(|rule| rule.reason.as_str()).collect();
                let distinct: HashSet<&&str> = reasons.iter().collect();
                assert_eq!(distinct.len(), reasons.len(), "{} {}", software.file, field.definition.name);
            }
        }
    }
}
