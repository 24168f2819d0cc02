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
            let down =
                in_family(round.points(Age::Fresh), "modeldeployment_pod_up").filter(|up| up.value == 0.0).count();
            let pods = if down == 0 { String::new() } else { plural(down, "Pod", "Pods") + " could not be read. " };
            let what = plural(required(&round.object.missing), "required source is", "required sources are");
            new("warn", "Partial", &format!("{pods}{what} missing from the newest round."))
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
            @if let Some(json) = json { a href=(json) { "JSON object" } }
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
    /// When each Pod was read, in seconds since 1970.
    observed: HashMap<&'a str, f64>,
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
        let observed = in_family(points, "modeldeployment_pod_observed_timestamp_seconds");
        let observed = observed.map(|point| (label(point, "pod"), point.value)).collect();
        let windowed = object.latency.iter().chain(&object.traffic).chain(&object.transfer);
        let windowed = windowed.map(|w| ((&*w.pod, &*w.source), (w.samples, w.window_seconds)));
        let caches = object.cache_hits.iter().map(|c| ((&*c.pod, &*c.scope), (c.queries, c.window_seconds)));
        let missing = object.missing.iter().map(|entry| ((&*entry.pod, &*entry.source), entry));
        Tables {
            object,
            age,
            points,
            cells,
            observed,
            windows: windowed.chain(caches).collect(),
            missing: missing.collect(),
        }
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
        let read = self.observed.get(name).and_then(|seconds| Duration::try_from_secs_f64(*seconds).ok());
        let Some(read) = read else { return html! {} };
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
            h2 { "Missing" @if !object.missing.is_empty() { span {
                " – " (plural(object.missing.len(), "entry", "entries")) ", " (required(&object.missing)) " required"
            } } }
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
                    "modeldeployment-exporter " (crate::VERSION) " (" (crate::REVISION) "). This page is of "
                    (moment(view.at)) " and is read again every " (refresh) " s."
                }
            }
        }
    }
    .into_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Metadata, Windowed};
    use crate::state::DeploymentName;
    use std::sync::Arc;

    const HOSTILE: &str = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>&amp;";

    fn point(family: &'static str, labels: &[(&'static str, &str)], value: f64) -> Point {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).into())).collect();
        Point { family: family.into(), labels, value }
    }

    fn entry(pod: &str, source: &str, code: Code, reason: &str, cause: Option<&'static str>) -> Missing {
        Missing { pod: pod.to_owned(), source: source.to_owned(), reason: reason.to_owned(), code, cause }
    }

    /// A round of these Pods, all of one role and `name`d alike; the first of them is unreadable.
    fn round(text: &str, pods: &[String], missing: Vec<Missing>, readable: bool) -> Arc<Published> {
        let mut points =
            vec![point("modeldeployment_info", &[("engine", text), ("router", text), ("kv_cache", "true")], 1.0)];
        for state in ["expected", "discovered", "readable"] {
            points.push(point("modeldeployment_pods", &[("scope", "engine"), ("role", text), ("state", state)], 2.0));
        }
        let mut latency = Vec::new();
        let cache = format!("{text}-cache");
        for (at, pod) in pods.iter().enumerate() {
            let member = [("pod", pod.as_str()), ("scope", "engine"), ("role", text)];
            points.push(point("modeldeployment_pod_up", &member, f64::from(u8::from(at > 0))));
            if at > 0 {
                let field = [&member[..], &[("source", text)]].concat();
                points.push(point("modeldeployment_pod_observed_timestamp_seconds", &member, 996.0));
                points.push(point("modeldeployment_ttft_mean_seconds", &field, 0.25));
                points.push(point(
                    "modeldeployment_cache_hit_ratio",
                    &[&field[..], &[("cache", cache.as_str())]].concat(),
                    0.5,
                ));
                latency.push(Windowed {
                    name: "ttft".to_owned(),
                    pod: pod.clone(),
                    source: text.to_owned(),
                    scope: format!("engine/{text}"),
                    unit: "seconds".to_owned(),
                    value: 0.25,
                    samples: 17.0,
                    window_seconds: 60.5,
                    observed_at: UNIX_EPOCH,
                });
            }
        }
        let object = ModelDeploymentMetrics {
            api_version: "worker.gpustack.ai/v1",
            kind: "ModelDeploymentMetrics",
            metadata: Metadata { name: text.to_owned(), namespace: text.to_owned() },
            timestamp: UNIX_EPOCH + Duration::from_secs(1000),
            processing: Vec::new(),
            queueing: Vec::new(),
            cache_hits: Vec::new(),
            latency,
            traffic: Vec::new(),
            transfer: Vec::new(),
            partial: required(&missing) > 0,
            missing,
        };
        Arc::new(Published::new(object, readable, Duration::ZERO, points))
    }

    fn view(newest: Newest, synced: bool, deployment: Option<&str>) -> View {
        let name = |name: &str| DeploymentName { namespace: name.to_owned(), name: name.to_owned() };
        let age = (!matches!(newest, Newest::None)).then(|| Duration::from_secs(200));
        let (at, interval) = (UNIX_EPOCH + Duration::from_secs(1200), Duration::from_secs(15));
        View { synced, deployment: deployment.map(name), newest, age, at, interval }
    }

    fn fresh(round: Arc<Published>) -> String {
        page(&view(Newest::Fresh(round), true, Some("chat")))
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("chat-server-{at}")).collect()
    }

    #[test]
    fn every_state_has_its_words() {
        let absent = |pod| entry(pod, "series", Code::MetricAbsent, "not exported", None);
        let idle = entry("a", "series", Code::Idle, "no request", None);
        let complete = || round("r", &names(2), vec![idle.clone()], true);
        let partial = |missing| Newest::Fresh(round("r", &names(2), missing, true));
        for (newest, synced, deployment, word, sentence) in [
            (Newest::None, false, None, "Starting", "description has not been read yet"),
            (Newest::None, true, Some("chat"), "Starting", "No round has finished yet."),
            (Newest::None, true, None, "Not found", "The model deployment does not exist."),
            (Newest::Fresh(complete()), true, Some("chat"), "Up", "The newest round is complete."),
            (
                partial(vec![absent("a")]),
                true,
                Some("chat"),
                "Partial",
                "<p>1 Pod could not be read. 1 required source is missing from",
            ),
            (partial(vec![absent("a"), absent("b")]), true, Some("chat"), "Partial", "2 required sources are missing"),
            (Newest::TooOld(complete()), true, Some("chat"), "Too old", "it finished 3 min ago"),
            (
                Newest::Fresh(round("r", &names(1), Vec::new(), false)),
                true,
                Some("chat"),
                "Not readable",
                "No Pod could be read in the newest round.",
            ),
        ] {
            let page = page(&view(newest, synced, deployment));
            assert!(page.contains(&format!("<strong>{word}</strong>")), "{word}: {page}");
            assert!(page.contains(&format!("<title>{word}")), "{word}");
            assert!(page.contains(sentence), "{word}: {page}");
        }
    }

    #[test]
    fn no_text_becomes_markup() {
        let pods = [HOSTILE.to_owned(), format!("{HOSTILE}2")];
        let missing = vec![
            entry(HOSTILE, "scrape", Code::Unreadable, HOSTILE, Some("status")),
            entry(&pods[1], HOSTILE, Code::Idle, HOSTILE, None),
            entry("", HOSTILE, Code::NoPod, HOSTILE, None),
        ];
        let newest = round(HOSTILE, &pods, missing, true);
        for newest in [Newest::Fresh(Arc::clone(&newest)), Newest::TooOld(newest)] {
            let page = page(&view(newest, true, Some(HOSTILE)));
            assert!(page.matches("&lt;script&gt;").count() > 8, "{page}");
            for markup in ["<script", "<img", "\">\"><", "x onerror=alert(2)>"] {
                assert!(!page.contains(markup), "{markup}: {page}");
            }
        }
    }

    #[test]
    fn it_needs_no_script_and_nothing_from_elsewhere() {
        let page = fresh(round("r", &names(3), Vec::new(), true));
        for active in ["<script", "javascript:", "onclick", "onload", "http://", "https://", "url(", "@import", " src="]
        {
            assert!(!page.contains(active), "{active}");
        }
        assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">") && page.ends_with("</html>"));
        assert!(page.contains("<meta http-equiv=\"refresh\" content=\"15\">"));
        assert!(POLICY.contains("default-src 'none'") && !POLICY.contains("script-src"));
    }

    #[test]
    fn the_browser_reads_it_again_once_a_round_within_limits() {
        for (interval, refresh) in [(0, 5), (5, 5), (59, 59), (3600, 60)] {
            let mut view = view(Newest::None, true, None);
            view.interval = Duration::from_secs(interval);
            assert!(page(&view).contains(&format!("content=\"{refresh}\"")), "{interval}");
        }
    }

    #[test]
    fn values_are_shown_short_with_the_exact_one_beside() {
        let page = fresh(round("some:series", &names(2), Vec::new(), true));
        let title = "title=\"0.25 s from some:series, 17 samples in 60.5 s\"";
        assert!(
            page.contains(&format!("<td data-of=\"TTFT\" {title}>250 ms<small>17 in window</small></td>")),
            "{page}"
        );
        assert!(
            page.contains("<td data-of=\"Hit ratio some:series-cache\" title=\"0.5 from some:series\">50 %</td>"),
            "{page}"
        );
        // Read 4 s before its round's end, which was 200 s ago.
        assert!(page.contains("<small title=\"1970-01-01T00:16:36.000Z\">3 min ago</small>"), "{page}");
        assert!(!page.contains("Resets"));
    }

    #[test]
    fn an_unreadable_pod_says_why() {
        let missing = vec![entry("chat-server-0", "scrape", Code::Unreadable, "no answer in 2s", Some("timeout"))];
        let of_two = fresh(round("r", &names(2), missing.clone(), true));
        assert!(of_two.contains("unreadable</span><small>timeout</small></td>"), "{of_two}");
        assert!(of_two.contains("<td class=\"why\" colspan=\"2\">no answer in 2s</td>"), "{of_two}");
        let alone = fresh(round("r", &names(1), missing, false));
        assert!(alone.contains("<th scope=\"col\">Reason</th></tr>"), "{alone}");
        assert!(alone.contains("<td class=\"why\" colspan=\"1\">no answer in 2s</td>"), "{alone}");
    }

    #[test]
    fn a_missing_value_has_its_code_in_the_table_and_its_reason_in_the_list() {
        let pods = names(3);
        let idle = entry("chat-server-2", "r", Code::Idle, "no request", None);
        let gone = entry("chat-server-1", "other", Code::MetricAbsent, "not exported", None);
        let whole = entry("", "router", Code::NoPod, "the router has no Pod", None);
        let newest = round("r", &pods, vec![whole, gone, idle], true);
        let points: Vec<Point> = newest.points(Age::Fresh).to_vec();
        let points = points
            .into_iter()
            .filter(|p| p.family != "modeldeployment_ttft_mean_seconds" || label(p, "pod") == "chat-server-1");
        let newest = Published::new(newest.object.clone(), true, Duration::ZERO, points.collect());
        let page = fresh(Arc::new(newest));
        assert!(
            page.contains("<td class=\"faint\" data-of=\"TTFT\" title=\"no request\">–<small>idle</small></td>"),
            "{page}"
        );
        let list = &page[page.find("id=\"missing\"").unwrap()..];
        let at = |text: &str| list.find(text).unwrap_or_else(|| panic!("{text}: {list}"));
        assert!(at("3 entries, 2 required") < at("The deployment"));
        assert!(at("The deployment") < at("the router has no Pod"));
        assert!(
            at("the router has no Pod")
                < at("<li class=\"sets\"><span class=\"tag\" title=\"required: the round is partial\">metric-absent")
        );
        assert!(at("<p>not exported</p>") < at("<li class=\"keeps\">"));
        assert!(at("<li class=\"keeps\">") < at("<p>no request</p>"));
    }

    #[test]
    fn a_round_that_is_too_old_shows_no_value() {
        let missing = vec![entry("chat-server-0", "scrape", Code::Unreadable, "no answer in 2s", Some("timeout"))];
        let page = page(&view(Newest::TooOld(round("r", &names(2), missing, true)), true, Some("chat")));
        assert!(!page.contains("<table") && !page.contains("250 ms"), "{page}");
        assert!(page.contains("<p>no answer in 2s</p>"), "{page}");
    }

    #[test]
    fn sixty_four_pods_stay_below_half_a_megabyte() {
        let pods = names(64);
        let reason = "a sentence for people that is as long as sentences of this kind are, and then somewhat longer";
        let sources = (0..12).map(|at| format!("vllm:some_series_of_a_usual_length_{at}_seconds"));
        let missing = sources.flat_map(|source| pods.iter().map(move |pod| (source.clone(), pod)));
        let missing = missing.map(|(source, pod)| entry(pod, &source, Code::FirstSample, reason, None)).collect();
        let page = fresh(round("server", &pods, missing, true));
        assert_eq!(page.matches("<li ").count(), 64 * 12);
        assert!(page.len() < 512 * 1024, "{}", page.len());
    }

    #[test]
    fn links_are_relative_and_encoded() {
        assert_eq!(segment("a b/ü"), "a%20b%2F%C3%BC");
        let page = page(&view(Newest::None, true, Some("a/b")));
        let json = "apis/worker.gpustack.ai/v1/namespaces/a%2Fb/modeldeployments/a%2Fb/metrics";
        for link in ["metrics", json, "healthz", "readyz"] {
            assert!(page.contains(&format!("<a href=\"{link}\"")), "{link}");
        }
    }
}
