//! Expositions as data: a template of one piece of software, compiled for one Pod and filled from its book.
//!
//! A template is an exposition with the values left open. Per sample, after its labels: a literal
//! value; `$key`, a value of the book that is there from the process' start on; `?key`, one that
//! appears with its first event; `@start`, the process' start time. A sample with `le="*"` and
//! `[buckets]` behind its key is a histogram. `{name}` in labels and keys stands for a value, or
//! for several: then the line is repeated. Lines with `!` are settings. It never simulates
//! anything and reads no clock.

use std::collections::HashMap;
use std::fmt::Write;

/// A template that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template line {line}: {what}")]
pub struct Error {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// How a client library writes numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Numbers {
    /// Whole numbers without a fraction.
    #[default]
    Rust,
    /// Always a fraction; an exponent from seven digits on.
    Python,
    /// The shortest form; an exponent from seven digits on.
    Go,
}

/// The order of a histogram's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Order {
    #[default]
    BucketSumCount,
    BucketCountSum,
    SumBucketCount,
}

#[derive(Debug)]
enum Sample {
    Literal(String),
    Value { text: String, slot: usize, optional: bool },
    Start { text: String },
    Histogram { buckets: Vec<String>, sum: String, count: String, slot: usize, optional: bool },
}

#[derive(Debug)]
struct Family {
    head: String,
    kind: String,
    samples: Vec<Sample>,
    created_head: String,
    /// The text of each `_created` sample, with the index of the sample that it belongs to.
    created: Vec<(String, usize)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Value(usize),
    Histogram(usize),
}

/// A template compiled for one Pod.
#[derive(Debug)]
pub(crate) struct Template {
    families: Vec<Family>,
    slots: HashMap<String, Slot>,
    values: usize,
    bounds: Vec<Vec<f64>>,
    numbers: Numbers,
    order: Order,
    blank_lines: bool,
    shuffle: bool,
}

/// The values of one process' lifetime.
#[derive(Debug, Clone)]
pub(crate) struct Book {
    values: Vec<Option<f64>>,
    histograms: Vec<Option<Histogram>>,
    /// When the process started, in seconds since the Unix epoch.
    pub start: f64,
    /// When its series were made, in seconds since the Unix epoch.
    pub created: f64,
}

#[derive(Debug, Clone)]
struct Histogram {
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

/// What a template's `{name}` stand for.
pub(crate) type Variables = Vec<(&'static str, Vec<String>)>;

impl Template {
    /// Compiles a template. A multiprocess server has no series of its process, no `_created`
    /// samples, and its histograms begin with their sum.
    pub fn compile(text: &str, variables: &Variables, multiprocess: bool) -> Result<Template, Error> {
        let mut template = Template {
            families: Vec::new(),
            slots: HashMap::new(),
            values: 0,
            bounds: Vec::new(),
            numbers: Numbers::default(),
            order: Order::default(),
            blank_lines: false,
            shuffle: false,
        };
        let mut buckets: HashMap<&str, Vec<&str>> = HashMap::new();
        let (mut created, mut process, mut help) = (false, false, "");
        for (index, line) in text.lines().enumerate() {
            let fail = |what: &str| Error { line: index + 1, what: what.to_owned() };
            if let Some(setting) = line.strip_prefix('!') {
                let mut words = setting.split(' ');
                match (words.next().unwrap_or(""), words.next().unwrap_or("")) {
                    ("numbers", "python") => template.numbers = Numbers::Python,
                    ("numbers", "go") => template.numbers = Numbers::Go,
                    ("numbers", "rust") => template.numbers = Numbers::Rust,
                    ("histograms", "sum") => template.order = Order::SumBucketCount,
                    ("histograms", "bucket") if words.next() == Some("count") => {
                        template.order = Order::BucketCountSum;
                    }
                    ("histograms", "bucket") => template.order = Order::BucketSumCount,
                    ("buckets", name) => {
                        buckets.insert(name, words.collect());
                    }
                    ("created", _) => created = !multiprocess,
                    ("process", _) => process = true,
                    ("end", _) => process = false,
                    ("blank-lines", _) => template.blank_lines = true,
                    ("shuffle", _) => template.shuffle = true,
                    _ => return Err(fail("is no setting")),
                }
                if multiprocess {
                    template.order = Order::SumBucketCount;
                }
                continue;
            }
            if line.is_empty() || (process && multiprocess) {
                continue;
            }
            if let Some(rest) = line.strip_prefix("# HELP ") {
                help = rest;
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| fail("needs a name and a type"))?;
                let help = help.strip_prefix(name).map_or("", str::trim_start);
                let head = head(name, help, kind);
                let has_created = created && !process && kind != "gauge";
                let base = created_base(name, kind);
                let created_head =
                    if has_created { self::head(&format!("{base}_created"), help, "gauge") } else { String::new() };
                template.families.push(Family {
                    head,
                    kind: kind.to_owned(),
                    samples: Vec::new(),
                    created_head,
                    created: Vec::new(),
                });
                continue;
            }
            for line in expand(line, variables) {
                template.sample(&line, &buckets).map_err(|what| fail(&what))?;
            }
        }
        Ok(template)
    }

    /// The slot of a key: a histogram when it has bounds.
    fn slot(&mut self, key: &str, bounds: Option<Vec<f64>>) -> Result<usize, String> {
        match (self.slots.get(key), bounds) {
            (Some(Slot::Value(slot)), None) => Ok(*slot),
            (Some(Slot::Histogram(slot)), Some(bounds)) if self.bounds[*slot] == bounds => Ok(*slot),
            (Some(_), _) => Err(format!("`{key}` is used in two forms")),
            (None, None) => {
                self.slots.insert(key.to_owned(), Slot::Value(self.values));
                self.values += 1;
                Ok(self.values - 1)
            }
            (None, Some(bounds)) => {
                self.slots.insert(key.to_owned(), Slot::Histogram(self.bounds.len()));
                self.bounds.push(bounds);
                Ok(self.bounds.len() - 1)
            }
        }
    }

    fn sample(&mut self, line: &str, buckets: &HashMap<&str, Vec<&str>>) -> Result<(), String> {
        let (series, value) = line.rsplit_once(' ').ok_or("needs a value")?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').ok_or("needs a closing brace")?),
            None => (series, ""),
        };
        let key = value.strip_prefix('$').or_else(|| value.strip_prefix('?'));
        let optional = value.starts_with('?');
        let sample = match key {
            None if value == "@start" => Sample::Start { text: format!("{series} ") },
            None => Sample::Literal(format!("{series} {value}\n")),
            Some(key) => match key.split_once('[') {
                None => Sample::Value { text: format!("{series} "), slot: self.slot(key, None)?, optional },
                Some((key, set)) => {
                    let texts = set.strip_suffix(']').and_then(|set| buckets.get(set)).ok_or("needs known buckets")?;
                    let bounds: Result<Vec<f64>, _> = texts.iter().map(|text| text.parse::<f64>()).collect();
                    let bounds = bounds.map_err(|_| "has a bucket that is no number")?;
                    let slot = self.slot(key, Some(bounds))?;
                    let texts = texts.iter().copied().chain(["+Inf"]);
                    let buckets = texts
                        .map(|le| format!("{name}_bucket{{{}}} ", labels.replace("le=\"*\"", &format!("le=\"{le}\""))));
                    let others = without_bucket(labels);
                    Sample::Histogram {
                        buckets: buckets.collect(),
                        sum: format!("{name}_sum{others} "),
                        count: format!("{name}_count{others} "),
                        slot,
                        optional,
                    }
                }
            },
        };
        let family = self.families.last_mut().ok_or("needs a TYPE line before it")?;
        if !family.created_head.is_empty() && !name.ends_with("_sum") {
            let base = created_base(name, &family.kind);
            family.created.push((format!("{base}_created{} ", without_bucket(labels)), family.samples.len()));
        }
        family.samples.push(sample);
        Ok(())
    }

    /// The book of a process that has just started; times in seconds since the Unix epoch.
    pub fn book(&self, start: f64, created: f64) -> Book {
        let mut book =
            Book { values: vec![None; self.values], histograms: vec![None; self.bounds.len()], start, created };
        for sample in self.families.iter().flat_map(|family| &family.samples) {
            match sample {
                Sample::Value { slot, optional: false, .. } => book.values[*slot] = Some(0.0),
                Sample::Histogram { slot, optional: false, .. } => {
                    book.histograms[*slot] = Some(Histogram::new(&self.bounds[*slot]));
                }
                _ => {}
            }
        }
        book
    }

    /// Adds to a value; a key that the template lacks is ignored, as software without a series does.
    pub fn add(&self, book: &mut Book, key: &str, by: f64) {
        if let Some(Slot::Value(slot)) = self.slots.get(key) {
            *book.values[*slot].get_or_insert(0.0) += by;
        }
    }

    /// Sets a value.
    pub fn set(&self, book: &mut Book, key: &str, value: f64) {
        if let Some(Slot::Value(slot)) = self.slots.get(key) {
            book.values[*slot] = Some(value);
        }
    }

    /// Observes a value `times` times.
    pub fn observe(&self, book: &mut Book, key: &str, value: f64, times: u64) {
        if let Some(Slot::Histogram(slot)) = self.slots.get(key) {
            let bounds = &self.bounds[*slot];
            let histogram = book.histograms[*slot].get_or_insert_with(|| Histogram::new(bounds));
            let bucket = bounds.partition_point(|bound| *bound < value);
            histogram.counts[bucket] += times;
            histogram.count += times;
            histogram.sum += value * times as f64;
        }
    }

    /// Sets every value under keys with this ending back to zero.
    pub fn reset(&self, book: &mut Book, ending: &str) {
        for (_, slot) in self.slots.iter().filter(|(key, _)| key.ends_with(ending)) {
            match slot {
                Slot::Value(slot) => book.values[*slot] = book.values[*slot].map(|_| 0.0),
                Slot::Histogram(slot) => {
                    let empty = Histogram::new(&self.bounds[*slot]);
                    book.histograms[*slot] = book.histograms[*slot].as_ref().map(|_| empty);
                }
            }
        }
    }

    /// Every key, sorted.
    #[cfg(test)]
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.slots.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    /// Whether a key has a value in a book.
    #[cfg(test)]
    pub fn is_written(&self, book: &Book, key: &str) -> bool {
        match self.slots.get(key) {
            Some(Slot::Value(slot)) => book.values[*slot].is_some(),
            Some(Slot::Histogram(slot)) => book.histograms[*slot].is_some(),
            None => false,
        }
    }

    /// The exposition. Software that keeps its series in hash maps writes them in a new order each time.
    pub fn render(&self, book: &Book, order_seed: u64) -> String {
        let mut out = String::with_capacity(64 * 1024);
        let mut rng = fastrand::Rng::with_seed(order_seed);
        let mut families: Vec<&Family> = self.families.iter().collect();
        if self.shuffle {
            // Counters, gauges and histograms are three maps, written one after the other.
            for kind in families.chunk_by_mut(|a, b| a.kind == b.kind) {
                rng.shuffle(kind);
            }
        }
        for family in families {
            let mut samples: Vec<&Sample> = family.samples.iter().filter(|s| self.is_present(s, book)).collect();
            if samples.is_empty() {
                continue;
            }
            if self.shuffle {
                rng.shuffle(&mut samples);
            }
            out.push_str(&family.head);
            for sample in samples {
                self.write(&mut out, sample, book);
            }
            if !family.created.is_empty() {
                out.push_str(&family.created_head);
                for (text, sample) in &family.created {
                    if self.is_present(&family.samples[*sample], book) {
                        out.push_str(text);
                        self.number(&mut out, book.created + *sample as f64 * 1e-5);
                        out.push('\n');
                    }
                }
            }
            if self.blank_lines {
                out.push('\n');
            }
        }
        out
    }

    fn is_present(&self, sample: &Sample, book: &Book) -> bool {
        match sample {
            Sample::Literal(_) | Sample::Start { .. } => true,
            Sample::Value { slot, .. } => book.values[*slot].is_some(),
            Sample::Histogram { slot, .. } => book.histograms[*slot].is_some(),
        }
    }

    fn write(&self, out: &mut String, sample: &Sample, book: &Book) {
        let line = |out: &mut String, text: &str, value: f64| {
            out.push_str(text);
            self.number(out, value);
            out.push('\n');
        };
        match sample {
            Sample::Literal(text) => out.push_str(text),
            Sample::Start { text } => line(out, text, book.start),
            Sample::Value { text, slot, .. } => {
                if let Some(value) = book.values[*slot] {
                    line(out, text, value);
                }
            }
            Sample::Histogram { buckets, sum, count, slot, .. } => {
                let Some(histogram) = &book.histograms[*slot] else { return };
                if self.order == Order::SumBucketCount {
                    line(out, sum, histogram.sum);
                }
                let mut below = 0;
                for (text, count) in buckets.iter().zip(&histogram.counts) {
                    below += count;
                    line(out, text, below as f64);
                }
                if self.order == Order::BucketSumCount {
                    line(out, sum, histogram.sum);
                }
                line(out, count, histogram.count as f64);
                if self.order == Order::BucketCountSum {
                    line(out, sum, histogram.sum);
                }
            }
        }
    }

    fn number(&self, out: &mut String, value: f64) {
        number(out, self.numbers, value);
    }
}

impl Histogram {
    fn new(bounds: &[f64]) -> Histogram {
        Histogram { counts: vec![0; bounds.len() + 1], sum: 0.0, count: 0 }
    }
}

fn head(name: &str, help: &str, kind: &str) -> String {
    let help = if help.is_empty() { String::new() } else { format!("# HELP {name} {help}\n") };
    format!("{help}# TYPE {name} {kind}\n")
}

/// What `_created` is put behind: a counter's name without `_total`, a summary's without `_count`.
fn created_base<'a>(name: &'a str, kind: &str) -> &'a str {
    let ending = match kind {
        "counter" => "_total",
        "summary" => "_count",
        _ => return name,
    };
    name.strip_suffix(ending).unwrap_or(name)
}

/// Labels in braces without the one of a bucket; nothing when none is left.
fn without_bucket(labels: &str) -> String {
    let labels = labels.replace(",le=\"*\"", "").replace("le=\"*\",", "").replace("le=\"*\"", "");
    if labels.is_empty() { labels } else { format!("{{{labels}}}") }
}

/// A line once for every value of every variable that it names, in the variables' order.
fn expand(line: &str, variables: &Variables) -> Vec<String> {
    let mut lines = vec![line.to_owned()];
    for (name, values) in variables {
        let name = format!("{{{name}}}");
        if lines.iter().any(|line| line.contains(&name)) {
            lines = lines.iter().flat_map(|line| values.iter().map(|value| line.replace(&name, value))).collect();
        }
    }
    lines
}

/// A number as the client libraries write it: prometheus_client's `floatToGoString`, Go's
/// `strconv` format `g` with the shortest precision, Rust's `Display`.
fn number(out: &mut String, numbers: Numbers, value: f64) {
    // Writing into a String cannot fail.
    if value.is_nan() {
        out.push_str("NaN");
        return;
    }
    if numbers == Numbers::Rust {
        let _ = write!(out, "{value}");
        return;
    }
    if value != 0.0 && value.abs() < 1e-4 {
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once("e-").unwrap_or((&text, "0"));
        let _ = write!(out, "{mantissa}e-{exponent:0>2}");
        return;
    }
    if value >= 1e6 {
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let _ = write!(out, "{mantissa}e+{exponent:0>2}");
        return;
    }
    let at = out.len();
    let _ = write!(out, "{value}");
    if numbers == Numbers::Python && !out[at..].contains('.') {
        out.push_str(".0");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(numbers: Numbers, value: f64) -> String {
        let mut out = String::new();
        number(&mut out, numbers, value);
        out
    }

    #[test]
    fn numbers_are_written_as_the_client_libraries_write_them() {
        // From the captured expositions of a Python, a Go and a Rust process.
        assert_eq!(text(Numbers::Python, 16.0), "16.0");
        assert_eq!(text(Numbers::Python, 320_411.0), "320411.0");
        assert_eq!(text(Numbers::Python, 1e6), "1e+06");
        assert_eq!(text(Numbers::Python, 4_672_970_752.0), "4.672970752e+09");
        assert_eq!(text(Numbers::Python, 1_796_082_573.921_277_3), "1.7960825739212773e+09");
        assert_eq!(text(Numbers::Python, 0.0), "0.0");
        assert_eq!(text(Numbers::Python, f64::NAN), "NaN");
        assert_eq!(text(Numbers::Python, 0.000_05), "5e-05");
        assert_eq!(text(Numbers::Go, 604.0), "604");
        assert_eq!(text(Numbers::Go, 1_048_576.0), "1.048576e+06");
        assert_eq!(text(Numbers::Rust, 91.032_804_325), "91.032804325");
        assert_eq!(text(Numbers::Rust, 8_282_112.0), "8282112");
    }

    #[test]
    fn a_template_is_filled_from_a_book() {
        let source = "!numbers python\n!histograms bucket count sum\n!created\n!buckets b 0.5 1.0\n\
            # HELP h_seconds Help.\n# TYPE h_seconds histogram\nh_seconds{e=\"{e}\",le=\"*\",m=\"x\"} $h/{e}[b]\n\
            # TYPE late_total counter\nlate_total{a=\"1\"} ?late\n";
        let template = Template::compile(source, &vec![("e", vec!["0".into(), "1".into()])], false).unwrap();
        let mut book = template.book(10.0, 20.0);
        template.observe(&mut book, "h/1", 0.5, 2);
        let expected = "# HELP h_seconds Help.\n# TYPE h_seconds histogram\n\
            h_seconds_bucket{e=\"0\",le=\"0.5\",m=\"x\"} 0.0\nh_seconds_bucket{e=\"0\",le=\"1.0\",m=\"x\"} 0.0\n\
            h_seconds_bucket{e=\"0\",le=\"+Inf\",m=\"x\"} 0.0\nh_seconds_count{e=\"0\",m=\"x\"} 0.0\n\
            h_seconds_sum{e=\"0\",m=\"x\"} 0.0\n\
            h_seconds_bucket{e=\"1\",le=\"0.5\",m=\"x\"} 2.0\nh_seconds_bucket{e=\"1\",le=\"1.0\",m=\"x\"} 2.0\n\
            h_seconds_bucket{e=\"1\",le=\"+Inf\",m=\"x\"} 2.0\nh_seconds_count{e=\"1\",m=\"x\"} 2.0\n\
            h_seconds_sum{e=\"1\",m=\"x\"} 1.0\n\
            # HELP h_seconds_created Help.\n# TYPE h_seconds_created gauge\n\
            h_seconds_created{e=\"0\",m=\"x\"} 20.0\nh_seconds_created{e=\"1\",m=\"x\"} 20.00001\n";
        assert_eq!(template.render(&book, 0), expected);
        template.add(&mut book, "late", 3.0);
        assert!(template.render(&book, 0).contains("late_total{a=\"1\"} 3.0\n"));
        template.reset(&mut book, "/1");
        assert!(template.render(&book, 0).contains("h_seconds_count{e=\"1\",m=\"x\"} 0.0\n"));
    }

    #[test]
    fn created_samples_are_named_after_their_family() {
        // vLLM has a histogram whose name ends in `_total`.
        assert_eq!(created_base("iteration_tokens_total", "histogram"), "iteration_tokens_total");
        assert_eq!(created_base("tokens_total", "counter"), "tokens");
        assert_eq!(created_base("size_bytes_count", "summary"), "size_bytes");
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = Template::compile("# TYPE a gauge\na 1\na{x=\"y\" 1\n", &Vec::new(), false).unwrap_err();
        assert_eq!(error.line, 3);
        let error =
            Template::compile("# TYPE a gauge\na $k\n# TYPE h histogram\nh{le=\"*\"} $k[b]\n", &Vec::new(), false);
        assert_eq!(error.unwrap_err().line, 4);
    }
}
