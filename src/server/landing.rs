//! The landing page: how the deployment stands, each Pod's values, and all that is missing and why.
//!
//! Plain HTML for a phone in the dark: no script, nothing loaded from elsewhere, read again by the
//! browser. It shows what the newest round published and decides nothing; the template escapes
//! every text. Links are relative, so the page works behind the API server's proxy.

mod columns;

use crate::export::Point;
use crate::snapshot::{Code, Missing, ModelDeploymentMetrics};
use crate::state::{Age, Newest, Published, View};
use columns::{COLUMNS, Column, Unit, digits, span};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The page's `Content-Security-Policy`: its own style and its empty icon, and nothing else.
pub const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// The browser reads the page again once a round, within these seconds.
const REFRESH: std::ops::RangeInclusive<u64> = 5..=60;

/// How the deployment stands.
struct Standing {
    /// The class of its colour.
    class: &'static str,
    word: &'static str,
    sentence: String,
}

fn standing(view: &View) -> Standing {
    let new = |class, word, sentence: &str| Standing { class, word, sentence: sentence.to_owned() };
    let age = view.age.map(span).unwrap_or_default();
    match &view.newest {
        Newest::None if !view.synced => new("wait", "Starting", "The deployment's description has not been read yet."),
        Newest::None if view.deployment.is_none() => new("bad", "Not found", "The model deployment does not exist."),
        Newest::None => new("wait", "Starting", "No round has finished yet."),
        Newest::TooOld(_) => Standing {
            class: "bad",
            word: "Too old",
            sentence: format!("The newest round is too old: it finished {age} ago. Its values are not shown."),
        },
        Newest::Fresh(round) if !round.readable => {
            new("bad", "Not readable", "No Pod could be read in the newest round.")
        }
        Newest::Fresh(round) if round.object.partial => {
            let what = plural(required(&round.object.missing), "required value is", "required values are");
            new("warn", "Partial", &format!("{what} missing from the newest round."))
        }
        Newest::Fresh(_) => new("good", "Up", "The newest round is complete."),
    }
}

/// A path segment in a link: what is not unreserved (RFC 3986) is percent-encoded.
fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn links(view: &View) -> Markup {
    let missing = match &view.newest {
        Newest::Fresh(round) | Newest::TooOld(round) => round.object.missing.len(),
        Newest::None => 0,
    };
    let json = view.deployment.as_ref().map(|deployment| {
        let (namespace, name) = (segment(&deployment.namespace), segment(&deployment.name));
        format!("apis/worker.gpustack.ai/v1/namespaces/{namespace}/modeldeployments/{name}/metrics")
    });
    html! {
        nav {
            a href="metrics" { "/metrics" }
            @if let Some(json) = json { a href=(json) title={ "/" (json) } { "JSON object" } }
            a href="healthz" { "/healthz" }
            a href="readyz" { "/readyz" }
            @if missing > 0 { a href="#missing" { (missing) " missing" } }
        }
    }
}

fn label<'a>(point: &'a Point, name: &str) -> &'a str {
    point.labels.iter().find(|(label, _)| *label == name).map_or("", |(_, value)| value)
}

fn in_family<'a>(points: &'a [Point], family: &'a str) -> impl Iterator<Item = &'a Point> {
    points.iter().filter(move |point| point.family == family)
}

fn plural(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// A moment, for people and programs.
fn moment(at: SystemTime) -> Markup {
    let text = humantime::format_rfc3339_seconds(at).to_string();
    let (day, time) = text.split_once('T').unwrap_or((&text, ""));
    html! { time datetime=(text) { (day) " " (time.trim_end_matches('Z')) " UTC" } }
}

/// What the deployment is, from the point that says so.
fn kind(points: &[Point]) -> Markup {
    html! {
        @for info in in_family(points, "modeldeployment_info") {
            p.faint {
                (label(info, "engine"))
                @if label(info, "pair") == "true" { ", prefill/decode pair" }
                @match label(info, "router") { "" => ", no router", router => { ", behind " (router) } }
                @if label(info, "kv_cache") == "true" { ", KV cache pool" } @else { ", no KV cache pool" }
            }
        }
    }
}

/// A column of one table: its place in [`COLUMNS`] and, of cache hits, the cache.
type Key<'a> = (usize, &'a str);

/// A Pod's points by column.
type Cells<'a> = HashMap<Key<'a>, &'a Point>;

/// A round, arranged for the tables.
struct Tables<'a> {
    object: &'a ModelDeploymentMetrics,
    /// How long ago the round finished.
    age: Duration,
    points: &'a [Point],
    cells: HashMap<&'a str, Cells<'a>>,
    /// Observations and seconds of a window, by Pod and cache or series.
    windows: HashMap<(&'a str, &'a str), (f64, f64)>,
    missing: HashMap<(&'a str, &'a str), &'a Missing>,
}

impl<'a> Tables<'a> {
    fn new(round: &'a Published, age: Duration) -> Tables<'a> {
        let (object, points) = (&round.object, &**round.points(Age::Fresh));
        let mut cells: HashMap<&str, Cells<'_>> = HashMap::new();
        for point in points {
            let family = point.family.strip_prefix("modeldeployment_");
            if let Some(column) = COLUMNS.iter().position(|column| Some(column.family) == family) {
                cells.entry(label(point, "pod")).or_default().insert((column, label(point, "cache")), point);
            }
        }
        let windowed = object.latency.iter().chain(&object.traffic).chain(&object.transfer);
        let windowed = windowed.map(|w| ((&*w.pod, &*w.source), (w.samples, w.window_seconds)));
        let caches = object.cache_hits.iter().map(|c| ((&*c.pod, &*c.scope), (c.queries, c.window_seconds)));
        let missing = object.missing.iter().map(|entry| ((&*entry.pod, &*entry.source), entry));
        Tables { object, age, points, cells, windows: windowed.chain(caches).collect(), missing: missing.collect() }
    }

    /// A section for each part of the deployment.
    fn sections(&self) -> Markup {
        let counts = in_family(self.points, "modeldeployment_pods");
        html! {
            @for expected in counts.filter(|point| label(point, "state") == "expected") {
                (self.section(label(expected, "scope"), label(expected, "role")))
            }
        }
    }

    fn section(&self, scope: &str, role: &str) -> Markup {
        let of_part = |point: &&Point| label(point, "scope") == scope && label(point, "role") == role;
        let count = |state: &str| {
            let counts = in_family(self.points, "modeldeployment_pods").filter(of_part);
            counts.filter(|point| label(point, "state") == state).map(|point| point.value).sum::<f64>()
        };
        let pods: Vec<&Point> = in_family(self.points, "modeldeployment_pod_up").filter(of_part).collect();
        let names: BTreeSet<&str> = pods.iter().map(|pod| label(pod, "pod")).collect();
        let cells = names.iter().filter_map(|name| self.cells.get(name));
        let shown = cells.flat_map(|cells| cells.iter().filter(|((column, _), point)| is_worth_it(*column, point)));
        // Each column with a series that it is read from, by which a Pod's missing entry is found.
        let columns: BTreeMap<Key<'_>, &str> = shown.map(|(key, point)| (*key, label(point, "source"))).collect();
        html! {
            section {
                h2 {
                    @if role.is_empty() { "Router" } @else { "Role " (role) }
                    span { " – " (count("readable")) " of " (count("expected")) " readable"
                        @if count("discovered") != count("expected") { ", " (count("discovered")) " found" } }
                }
                @if pods.is_empty() { p { "No Pod was read or tried." } } @else {
                    div.scroll { table {
                        thead { tr {
                            th scope="col" { "Pod" }
                            th scope="col" { "State" }
                            @for (index, cache) in columns.keys() {
                                @let column = &COLUMNS[*index];
                                th scope="col" title=(column.help()) { (heading(column, cache)) }
                            }
                            @if columns.is_empty() { th scope="col" { "Reason" } }
                        } }
                        tbody { @for pod in pods { (self.pod(pod, &columns)) } }
                    } }
                }
            }
        }
    }

    fn pod(&self, up: &Point, columns: &BTreeMap<Key<'_>, &str>) -> Markup {
        let name = label(up, "pod");
        let why = self.missing.get(&(name, "scrape"));
        html! {
            tr {
                th scope="row" { (name) }
                @if up.value == 1.0 {
                    td { span.mark.good { "readable" } (self.read(name)) }
                    @for (key, source) in columns { (self.cell(name, *key, source)) }
                } @else {
                    td { span.mark.bad { (why.map_or("unreadable", |why| why.code.as_str())) }
                        @if let Some(cause) = why.and_then(|why| why.cause) { small { (cause) } } }
                    // The table's heading has this many cells left, and at least one.
                    td.why colspan=(columns.len().max(1)) { @if let Some(why) = why { (why.reason) } }
                }
            }
        }
    }

    /// When a Pod was read.
    fn read(&self, name: &str) -> Markup {
        let mut reads = in_family(self.points, "modeldeployment_pod_observed_timestamp_seconds");
        let read = reads.find(|point| label(point, "pod") == name);
        let Some(read) = read.and_then(|point| Duration::try_from_secs_f64(point.value).ok()) else { return html! {} };
        let at = UNIX_EPOCH + read;
        // Both times are the wall clock's of one round; what has passed since is the monotonic clock's.
        let age = self.age + self.object.timestamp.duration_since(at).unwrap_or_default();
        html! { small title=(humantime::format_rfc3339_millis(at)) { (span(age)) " ago" } }
    }

    fn cell(&self, pod: &str, key: Key<'_>, source: &str) -> Markup {
        let (index, cache) = key;
        let column = &COLUMNS[index];
        let heading = heading(column, cache);
        let named = if cache.is_empty() { source } else { cache };
        let Some(point) = self.cells.get(pod).and_then(|cells| cells.get(&key)) else {
            let why = self.missing.get(&(pod, named));
            return html! {
                td.faint data-of=(heading) title=[why.map(|why| &why.reason)] { "–"
                    @if let Some(why) = why { small { (why.code.as_str()) } } }
            };
        };
        let source = label(point, "source");
        let window = self.windows.get(&(pod, if cache.is_empty() { source } else { cache }));
        html! {
            td data-of=(heading) title={ (column.unit.exact(point.value))
                @if !source.is_empty() { " from " (source) }
                @if let Some((samples, seconds)) = window { ", " (samples) " samples in " (seconds) " s" } } {
                (column.unit.short(point.value))
                @if let Some((samples, _)) = window {
                    small {
                        @if column.unit == Unit::Ratio { "of " (digits(*samples)) }
                        @else { (digits(*samples)) " in window" }
                    }
                }
            }
        }
    }
}

/// Whether a point asks for a column: a Pod whose counters were never reset is the usual case.
fn is_worth_it(column: usize, point: &Point) -> bool {
    COLUMNS[column].family != "pod_resets_total" || point.value > 0.0
}

fn heading(column: &Column, cache: &str) -> String {
    if cache.is_empty() { column.heading.to_owned() } else { format!("{} {cache}", column.heading) }
}

/// How many entries make the round partial.
fn required<'a>(missing: impl IntoIterator<Item = &'a Missing>) -> usize {
    missing.into_iter().filter(|entry| entry.code.is_partial()).count()
}

/// Every missing entry by Pod: first those about no single one, then what makes the round partial.
fn missing(object: &ModelDeploymentMetrics) -> Markup {
    let mut by_pod: BTreeMap<&str, Vec<&Missing>> = BTreeMap::new();
    for entry in &object.missing {
        by_pod.entry(&entry.pod).or_default().push(entry);
    }
    let mut groups: Vec<(&str, Vec<&Missing>)> = by_pod.into_iter().collect();
    groups.sort_by_key(|(pod, group)| (!pod.is_empty(), required(group.iter().copied()) == 0));
    for (_, group) in &mut groups {
        group.sort_by_key(|entry| !entry.code.is_partial());
    }
    html! {
        section #missing {
            h2 { "Missing" span {
                " – " (plural(object.missing.len(), "value", "values")) ", " (required(&object.missing)) " required"
            } }
            @if object.missing.is_empty() { p { "Nothing is missing." } } @else {
                p.faint { "Filled: required, so the round is partial. Outlined: it does not count as partial." }
            }
            @for (pod, entries) in &groups {
                div.group {
                    h3 { @if pod.is_empty() { "The deployment" } @else { (pod) } span { " – " (entries.len()) } }
                    ul { @for entry in entries { (missing_entry(entry)) } }
                }
            }
        }
    }
}

fn missing_entry(entry: &Missing) -> Markup {
    let (class, title) = if entry.code.is_partial() {
        ("sets", "required: the round is partial")
    } else {
        ("keeps", "does not make the round partial")
    };
    html! {
        li class=(class) {
            span.tag title=(title) { (tag(entry.code, entry.cause)) } " " code { (entry.source) }
            p { (entry.reason) }
        }
    }
}

fn tag(code: Code, cause: Option<&str>) -> String {
    cause.map_or_else(|| code.as_str().to_owned(), |cause| format!("{}: {cause}", code.as_str()))
}

/// The newest round, as far as it is true.
fn round(view: &View) -> Markup {
    let age = view.age.unwrap_or_default();
    html! {
        @match &view.newest {
            Newest::None => {}
            Newest::Fresh(round) => {
                (Tables::new(round, age).sections())
                (missing(&round.object))
            }
            Newest::TooOld(round) => (missing(&round.object)),
        }
    }
}

/// The page.
pub fn page(view: &View) -> String {
    let standing = standing(view);
    let name = view.deployment.as_ref().map(|deployment| format!("{}/{}", deployment.namespace, deployment.name));
    let refresh = view.interval.as_secs().clamp(*REFRESH.start(), *REFRESH.end());
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="refresh" content=(refresh);
                title { (standing.word) @if let Some(name) = &name { " – " (name) } }
                link rel="icon" href="data:,";
                style { (PreEscaped(include_str!("landing/style.css"))) }
            }
            body {
                header {
                    h1 { @match &name { Some(name) => (name), None => "modeldeployment-exporter" } }
                    @match &view.newest {
                        Newest::Fresh(round) => (kind(round.points(Age::Fresh))),
                        Newest::TooOld(round) => (kind(round.points(Age::TooOld))),
                        Newest::None => {}
                    }
                }
                main {
                    div.state.(standing.class) {
                        strong { (standing.word) }
                        p { (standing.sentence) }
                        @if let Newest::Fresh(round) | Newest::TooOld(round) = &view.newest {
                            p { small {
                                "Round of " (moment(round.object.timestamp)) ", "
                                (view.age.map(span).unwrap_or_default()) " ago"
                            } }
                        }
                    }
                    (links(view))
                    (round(view))
                }
                footer {
                    "modeldeployment-exporter " (super::VERSION) " (" (super::REVISION) "). This page is of "
                    (moment(view.at)) " and is read again every " (refresh) " s."
                }
            }
        }
    }
    .into_string()
}
