//! Turns the bytes of one text exposition into the samples the catalogue wants, in one pass.
//!
//! Strict on the lines it needs, fast past those it does not; a body is pushed in chunks as it
//! streams and is never collected. It is a pure function of the bytes and the wanted names: it
//! does no I/O and knows no field, engine or router.
//!
//! The grammar is that of the text format 0.0.4 (prometheus.io, "Exposition formats") as Go's
//! `expfmt` reads it, with what real bodies add: CRLF line ends, blanks at the end of a line, and
//! OpenMetrics' timestamps in seconds, exemplars and `# EOF`. In both formats a newline ends a
//! line wherever it stands, so a line is the unit that can be skipped unread.

mod newlines;
mod sample;
mod sieve;

use newlines::Newlines;
use sample::Scratch;
use sieve::Sieve;
use std::fmt;
use std::sync::Arc;

/// An unwanted line longer than this does not count as valid while no line has been valid yet:
/// deciding would need all of it in memory. Bytes; far above any label set that is exported.
const LONGEST_WITNESS: usize = 16 * 1024;

/// Room for a line that a chunk cuts, in bytes: few are longer, so how chunks fall allocates nothing.
const USUAL_LINE: usize = 512;

/// OpenMetrics' last line, which may lack its newline (OpenMetrics 1.0, "exposition" in the ABNF).
const END_MARK: &[u8] = b"# EOF";

/// The sample names a reader keeps, each with a dense id in the order given.
#[derive(Debug, Clone, Default)]
pub struct Names {
    names: Vec<String>,
    sieve: Sieve,
}

impl Names {
    /// Wanted names in the order of their ids. A name given twice keeps its first id; one that is
    /// no metric name has an id and no samples.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Names {
        let mut kept: Vec<String> = Vec::new();
        for name in names {
            let name = name.into();
            if !kept.contains(&name) {
                kept.push(name);
            }
        }
        let sieve = Sieve::new(&kept);
        Names { names: kept, sieve }
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no name is wanted.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The id of a name, if it is wanted.
    pub fn id(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }
}

/// One label set in canonical form: sorted by name, equal sets are equal bytes.
///
/// Stored as `name 0xFF value 0xFE …` in one allocation, which clones share: both bytes never occur
/// in UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Labels(Arc<[u8]>);

const AFTER_NAME: u8 = 0xFF;
const AFTER_VALUE: u8 = 0xFE;

impl Labels {
    /// A label set of these pairs, sorted by name.
    pub fn new(pairs: &mut [(&str, &str)]) -> Labels {
        pairs.sort_unstable();
        Labels::from_sorted(pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    /// A label set of pairs that are UTF-8 and sorted by name already.
    fn from_sorted<'p>(pairs: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone) -> Labels {
        let mut bytes = Vec::with_capacity(pairs.clone().map(|(name, value)| name.len() + value.len() + 2).sum());
        for (name, value) in pairs {
            bytes.extend_from_slice(name);
            bytes.push(AFTER_NAME);
            bytes.extend_from_slice(value);
            bytes.push(AFTER_VALUE);
        }
        Labels(bytes.into())
    }

    /// Name and value of each label, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.split(|b| *b == AFTER_VALUE).filter_map(|pair| {
            let at = memchr::memchr(AFTER_NAME, pair)?;
            Some((std::str::from_utf8(&pair[..at]).ok()?, std::str::from_utf8(&pair[at + 1..]).ok()?))
        })
    }

    /// Bytes that the set takes.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// The value of a label, if the set has it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// The set without the labels for which `drop` holds.
    pub fn without(&self, drop: impl Fn(&str) -> bool) -> Labels {
        let mut pairs: Vec<(&str, &str)> = self.iter().filter(|(n, _)| !drop(n)).collect();
        Labels::new(&mut pairs)
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// One sample of a wanted name.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its label set.
    pub labels: Labels,
    /// Its value: finite and not negative.
    pub value: f64,
}

/// The wanted samples of one exposition, by the ids of [`Names`].
///
/// Of two samples of a name with one label set the first counts; samples that are NaN, infinite
/// or negative are left out (contract, section 4).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// By id, each sorted by label set.
    by_name: Vec<Vec<Sample>>,
}

impl Samples {
    /// The samples of a name, sorted by label set; empty when the exposition has none.
    pub fn of(&self, id: usize) -> &[Sample] {
        self.by_name.get(id).map_or(&[], Vec::as_slice)
    }

    /// Samples by id, each in the order of the body.
    fn new(mut by_name: Vec<Vec<Sample>>) -> Samples {
        for samples in &mut by_name {
            // Stable, so that the first of equal label sets stays the first.
            samples.sort_by(|a, b| a.labels.cmp(&b.labels));
            // Before the filter: a first sample that is NaN hides the second.
            samples.dedup_by(|next, kept| next.labels == kept.labels);
            samples.retain(|sample| sample.value.is_finite() && sample.value >= 0.0);
        }
        Samples { by_name }
    }
}

/// Why a body is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The body has lines, and none of them is a valid sample or comment.
    #[error("line {line} is no sample or comment of the text exposition, and no other line is")]
    NotExposition {
        /// The first line that is not valid, from 1.
        line: usize,
    },
    /// A line with a wanted name does not parse.
    #[error("line {line}: {what}")]
    BadLine {
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The last line has no newline although an earlier line was valid.
    #[error("the body ends in the middle of line {line}")]
    Truncated {
        /// The last line's number, from 1.
        line: usize,
    },
}

/// What is known of the line that the last chunk left unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Open {
    /// The last chunk ended with a newline, or there was none.
    #[default]
    No,
    /// Only blanks so far; they mean nothing and are not kept.
    Blank,
    /// Its bytes are in `held`: it may be wanted, or may be the first valid line.
    Held,
    /// A comment, skipped.
    Comment,
    /// Neither; skipped.
    Skipped,
}

/// Reads one exposition, chunk by chunk.
///
/// ```
/// use modeldeployment_exporter::exposition::{Names, Reader};
///
/// let names = Names::new(["requests_total"]);
/// let mut reader = Reader::new(&names);
/// reader.push(b"# TYPE requests_total counter\nrequests_tot")?;
/// reader.push(b"al{code=\"200\"} 3\n")?;
/// let samples = reader.finish()?;
/// assert_eq!(samples.of(0)[0].labels.get("code"), Some("200"));
/// assert_eq!(samples.of(0)[0].value, 3.0);
/// # Ok::<(), modeldeployment_exporter::exposition::Error>(())
/// ```
#[derive(Debug)]
pub struct Reader<'a> {
    names: &'a Names,
    /// Wanted samples by id, each in the order of the body.
    read: Vec<Vec<Sample>>,
    /// Finished lines so far.
    lines: usize,
    /// Whether a finished line was a valid sample or comment.
    valid: bool,
    /// The first line that was not, while none was valid.
    first_bad: Option<usize>,
    open: Open,
    /// The unfinished line, without leading blanks, where it is [`Open::Held`].
    held: Vec<u8>,
    scratch: Scratch,
    /// The error of an earlier chunk; the rest of the body cannot mend it.
    failed: Option<Error>,
}

impl<'a> Reader<'a> {
    /// A reader of the samples with these names.
    pub fn new(names: &'a Names) -> Reader<'a> {
        Reader {
            names,
            read: vec![Vec::new(); names.len()],
            lines: 0,
            valid: false,
            first_bad: None,
            open: Open::No,
            held: Vec::with_capacity(USUAL_LINE),
            scratch: Scratch::default(),
            failed: None,
        }
    }

    /// Reads the next chunk; chunk boundaries may fall anywhere.
    ///
    /// # Errors
    ///
    /// [`Error::BadLine`] as soon as a wanted line does not parse, and again for every later chunk.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.read_chunk(chunk);
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// Ends the body and gives its samples.
    ///
    /// # Errors
    ///
    /// What [`Reader::push`] reported, [`Error::Truncated`] or [`Error::NotExposition`].
    pub fn finish(mut self) -> Result<Samples, Error> {
        self.take()
    }

    /// Ends the body like [`Reader::finish`], and keeps the buffers for the next one.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::finish`]; the reader is ready for the next body all the same.
    pub fn take(&mut self) -> Result<Samples, Error> {
        let result = self.end();
        let read = std::mem::replace(&mut self.read, vec![Vec::new(); self.names.len()]);
        self.held.clear();
        (self.lines, self.valid, self.first_bad, self.open, self.failed) = (0, false, None, Open::No, None);
        result.map(|()| Samples::new(read))
    }

    fn end(&mut self) -> Result<(), Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let ended = self.open == Open::Held && self.held == END_MARK;
        if self.open != Open::No && !ended {
            let line = self.lines + 1;
            return Err(if self.valid {
                Error::Truncated { line }
            } else {
                Error::NotExposition { line: self.first_bad.unwrap_or(line) }
            });
        }
        if self.lines > 0 && !self.valid && !ended {
            return Err(Error::NotExposition { line: self.first_bad.unwrap_or(1) });
        }
        Ok(())
    }

    fn read_chunk(&mut self, chunk: &[u8]) -> Result<(), Error> {
        let mut rest = chunk;
        if self.open != Open::No {
            let Some(newline) = memchr::memchr(b'\n', rest) else {
                self.hold(rest);
                return Ok(());
            };
            self.close(&rest[..newline])?;
            rest = &rest[newline + 1..];
        }
        let whole = memchr::memrchr(b'\n', rest).map_or(0, |newline| newline + 1);
        let (whole, unfinished) = rest.split_at(whole);
        self.read_lines(whole)?;
        self.hold(unfinished);
        Ok(())
    }

    /// Reads lines of which the last has its newline too.
    fn read_lines(&mut self, lines: &[u8]) -> Result<(), Error> {
        let mut start = 0;
        // How the last line begins that the sieve let through although its name is not wanted:
        // those behind it are mostly of the same family.
        let mut alike: &[u8] = &[];
        for newline in Newlines::new(lines) {
            let rest = &lines[start..];
            // The hot path: once the body has proved to be an exposition, an unwanted line is
            // nothing but its newline.
            let unwanted = || !self.names.sieve.may_start(rest) || (!alike.is_empty() && rest.starts_with(alike));
            if self.valid && unwanted() {
                self.lines += 1;
            } else {
                let line = &lines[start..newline];
                if !self.read_line(line)? {
                    alike = sieve::name_and_end(line);
                }
            }
            start = newline + 1;
        }
        Ok(())
    }

    /// Reads one line without its newline; tells whether it has a wanted name.
    fn read_line(&mut self, line: &[u8]) -> Result<bool, Error> {
        self.lines += 1;
        let line = without_blanks(line.strip_suffix(b"\r").unwrap_or(line));
        if line.is_empty() {
            return Ok(false);
        }
        if line[0] == b'#' {
            self.valid = true;
        } else if let Some((id, rest)) = self.names.sieve.find(line, &self.names.names) {
            let (labels, value) =
                sample::parse(rest, &mut self.scratch).map_err(|what| Error::BadLine { line: self.lines, what })?;
            self.read[id].push(Sample { labels, value });
            self.valid = true;
            return Ok(true);
        } else if !self.valid {
            if is_sample(line, &mut self.scratch) {
                self.valid = true;
            } else {
                self.first_bad.get_or_insert(self.lines);
            }
        }
        Ok(false)
    }

    /// Takes more of an unfinished line, as much as can matter.
    fn hold(&mut self, part: &[u8]) {
        if part.is_empty() || matches!(self.open, Open::Comment | Open::Skipped) {
            return;
        }
        let part = if self.held.is_empty() { without_blanks(part) } else { part };
        if part.is_empty() {
            self.open = Open::Blank;
            return;
        }
        self.held.extend_from_slice(part);
        self.open = self.outlook();
        if self.open != Open::Held {
            self.held.clear();
        }
    }

    /// Ends the unfinished line with its last bytes.
    fn close(&mut self, part: &[u8]) -> Result<(), Error> {
        match std::mem::take(&mut self.open) {
            Open::Held => {
                let mut line = std::mem::take(&mut self.held);
                line.extend_from_slice(part);
                let result = self.read_line(&line);
                line.clear();
                self.held = line;
                result.map(|_| ())
            }
            Open::No | Open::Blank => self.read_line(part).map(|_| ()),
            Open::Comment => {
                self.lines += 1;
                self.valid = true;
                Ok(())
            }
            Open::Skipped => {
                self.lines += 1;
                if !self.valid {
                    self.first_bad.get_or_insert(self.lines);
                }
                Ok(())
            }
        }
    }

    /// Whether the bytes held so far can still matter.
    fn outlook(&self) -> Open {
        let line = self.held.as_slice();
        if line.starts_with(b"#") {
            return if END_MARK.starts_with(line) { Open::Held } else { Open::Comment };
        }
        if line == b"\r" {
            // Perhaps a blank line's end.
            return Open::Held;
        }
        let unfinished_name = line.iter().all(|b| sieve::is_name_byte(*b));
        let wanted = if unfinished_name {
            self.names.names.iter().any(|name| name.as_bytes().starts_with(line))
        } else {
            self.names.sieve.find(line, &self.names.names).is_some()
        };
        // One byte more, for it may be the carriage return of the line's end.
        let witness = !self.valid && line.len() <= LONGEST_WITNESS + 1 && sieve::starts_name(line);
        if wanted || witness { Open::Held } else { Open::Skipped }
    }
}

fn without_blanks(line: &[u8]) -> &[u8] {
    let blanks = line.iter().take_while(|b| sample::is_blank(**b)).count();
    &line[blanks..]
}

/// Whether a line without leading blanks is a valid sample of any name.
fn is_sample(line: &[u8], scratch: &mut Scratch) -> bool {
    let name = line.iter().take_while(|b| sieve::is_name_byte(**b)).count();
    line.len() <= LONGEST_WITNESS && sieve::starts_name(line) && sample::parse(&line[name..], scratch).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = &'static [(&'static str, &'static str)];

    fn read(names: &[&str], body: impl AsRef<[u8]>) -> Result<Samples, Error> {
        let body = body.as_ref();
        let names = Names::new(names.iter().copied());
        let mut reader = Reader::new(&names);
        // An error comes again at the end.
        let _ = reader.push(body);
        let at_once = reader.take();
        for byte in body.chunks(1) {
            let _ = reader.push(byte);
        }
        assert_eq!(reader.take(), at_once, "byte by byte: {:?}", String::from_utf8_lossy(body));
        at_once
    }

    /// The values of the only wanted name, `x`.
    fn values(body: impl AsRef<[u8]>) -> Result<Vec<f64>, Error> {
        read(&["x"], body).map(|samples| samples.of(0).iter().map(|sample| sample.value).collect())
    }

    fn sample(labels: Pairs, value: f64) -> Sample {
        Sample { labels: Labels::new(&mut labels.to_vec()), value }
    }

    #[test]
    fn lines_that_are_read() {
        let lines: &[(&str, Pairs, f64)] = &[
            // Values.
            ("x 1", &[], 1.0),
            ("x 0", &[], 0.0),
            ("x +1", &[], 1.0),
            ("x 1.5e3", &[], 1500.0),
            ("x 2E-2", &[], 0.02),
            ("x 1.79608251502e+09", &[], 1_796_082_515.02),
            ("x .5", &[], 0.5),
            ("x 5.", &[], 5.0),
            ("x 1e-400", &[], 0.0),
            // Timestamps: milliseconds, and OpenMetrics' seconds.
            ("x 1 1395066363000", &[], 1.0),
            ("x 1 -3", &[], 1.0),
            ("x 1 1520879607.789", &[], 1.0),
            ("x 1\t1", &[], 1.0),
            // Blanks.
            ("  \t x 1", &[], 1.0),
            ("x\t \t1", &[], 1.0),
            ("x 1 \t", &[], 1.0),
            ("x 1 2 ", &[], 1.0),
            ("x {a=\"b\"} 1", &[("a", "b")], 1.0),
            ("x\t{\ta = \"b\"\t,\tc\t=\t\"d\" , }\t1", &[("a", "b"), ("c", "d")], 1.0),
            // Braces.
            ("x{} 1", &[], 1.0),
            ("x{ } 1", &[], 1.0),
            ("x{}1", &[], 1.0),
            ("x{a=\"b\"}1", &[("a", "b")], 1.0),
            ("x{a=\"b\",} 1", &[("a", "b")], 1.0),
            ("x{b=\"2\",a=\"1\"} 1", &[("a", "1"), ("b", "2")], 1.0),
            // Label values.
            (r#"x{a=""} 1"#, &[("a", "")], 1.0),
            (r#"x{a="\\\"\n"} 1"#, &[("a", "\\\"\n")], 1.0),
            (r#"x{a="\\n"} 1"#, &[("a", "\\n")], 1.0),
            (r#"x{a="C:\\"} 1"#, &[("a", "C:\\")], 1.0),
            (r#"x{a="b,c=\"d\"",e="f"} 1"#, &[("a", "b,c=\"d\""), ("e", "f")], 1.0),
            (r#"x{a="}{"} 1"#, &[("a", "}{")], 1.0),
            (r#"x{a="} 9 # "} 1"#, &[("a", "} 9 # ")], 1.0),
            (r#"x{a="\nx 9"} 1"#, &[("a", "\nx 9")], 1.0),
            (r#"x{a=" b	c "} 1"#, &[("a", " b\tc ")], 1.0),
            ("x{a=\"grün\u{1F600}\"} 1", &[("a", "grün\u{1F600}")], 1.0),
            ("x{a=\"x 5\rx 6\"} 1", &[("a", "x 5\rx 6")], 1.0),
            ("x{_a0=\"b\",A=\"B\"} 1", &[("A", "B"), ("_a0", "b")], 1.0),
            // Line ends.
            ("x 1\r", &[], 1.0),
            ("x{a=\"b\"} 1 2\r", &[("a", "b")], 1.0),
            // Exemplars.
            (r##"x{le="1"} 3 # {trace="a} # 7"} 0.5"##, &[("le", "1")], 3.0),
            (r##"x 3 17.5 # {} 0.5 1520879607.789"##, &[], 3.0),
            (r##"x 3 #{a="b"}0.5"##, &[], 3.0),
        ];
        for (line, labels, value) in lines {
            let read = read(&["x"], format!("{line}\n"));
            assert_eq!(read.as_ref().map(|s| s.of(0)), Ok([sample(labels, *value)].as_slice()), "{line:?}");
        }
    }

    #[test]
    fn values_that_are_left_out() {
        for value in ["NaN", "nan", "+Inf", "-Inf", "Inf", "inf", "-1", "-0.5", "-1e-300"] {
            assert_eq!(values(format!("x {value}\n")), Ok(vec![]), "{value}");
            assert_eq!(values(format!("x {value}\nx{{a=\"b\"}} 2\n")), Ok(vec![2.0]), "{value}");
        }
        // A negative zero is a zero.
        assert_eq!(values("x -0\n"), Ok(vec![0.0]));
    }

    #[test]
    fn wanted_lines_that_do_not_parse() {
        let lines: &[&[u8]] = &[
            b"x",
            b"x ",
            b"x{a=\"b\"}",
            b"x{a=\"b\"} ",
            b"x one",
            b"x 1,5",
            b"x 0x10",
            b"x 1_000",
            b"x -NaN",
            b"x 1e400",
            b"x --1",
            b"x 1 now",
            b"x 1 NaN",
            b"x 1 +Inf",
            b"x 1 2 3",
            b"x 1 # comment",
            b"x 1# {} 1",
            b"x 1 # {}",
            b"x 1 # {a=\"b\",a=\"c\"} 1",
            b"x 1 # {} 1 2 3",
            b"x 1\r\r",
            b"x=1",
            b"x-y 1",
            b"x.y 1",
            b"x\x00 1",
            b"x\xA0 1",
            b"x{ 1",
            b"x} 1",
            b"x{a} 1",
            b"x{a=} 1",
            b"x{a=b} 1",
            b"x{a='b'} 1",
            b"x{a=\"b} 1",
            b"x{a=\"b\" 1",
            b"x{a=\"b\"}} 1",
            b"x{a=\"b\";c=\"d\"} 1",
            b"x{a=\"b\" c=\"d\"} 1",
            b"x{a=\"b\",,} 1",
            b"x{,} 1",
            b"x{,a=\"b\"} 1",
            b"x{=\"b\"} 1",
            b"x{0a=\"b\"} 1",
            b"x{a:b=\"c\"} 1",
            b"x{a-b=\"c\"} 1",
            b"x{__name__=\"y\"} 1",
            b"x{a=\"\\t\"} 1",
            b"x{a=\"\\\"} 1",
            b"x{a=\"b\",a=\"b\"} 1",
            b"x{a=\"1\",b=\"2\",a=\"3\"} 1",
            b"x{a=\"\xFF\"} 1",
            b"x{a=\"\xC3\"} 1",
            b"x{a=\"\xED\xA0\x80\"} 1",
            b"x 1 \xFF",
        ];
        for line in lines {
            for end in ["\n", "\r\n"] {
                let body = [b"# TYPE x gauge\n\nx{ok=\"1\"} 1\n", *line, end.as_bytes(), b"x 2\n"].concat();
                let error = values(&body).expect_err(&String::from_utf8_lossy(line));
                assert!(
                    matches!(error, Error::BadLine { line: 4, .. }),
                    "{error}: {:?}",
                    String::from_utf8_lossy(line)
                );
            }
        }
    }

    #[test]
    fn an_error_says_the_line_and_what_is_wrong() {
        assert_eq!(
            values("# TYPE x gauge\r\n\r\nx{a=\"\\t\"} 1\r\n").map_err(|e| e.to_string()),
            Err("line 3: a label value has an escape other than \\\\, \\\" and \\n".to_owned()),
        );
        assert_eq!(
            values("x{a=\"1\",a=\"2\"} 1\n").map_err(|e| e.to_string()),
            Err("line 1: a label name occurs twice".to_owned()),
        );
        assert_eq!(values("x{a=\"1\"} \n").map_err(|e| e.to_string()), Err("line 1: the value is missing".to_owned()),);
        assert_eq!(
            values("\n<html>\n").map_err(|e| e.to_string()),
            Err("line 2 is no sample or comment of the text exposition, and no other line is".to_owned()),
        );
        assert_eq!(
            values("y 1\nx").map_err(|e| e.to_string()),
            Err("the body ends in the middle of line 2".to_owned())
        );
    }

    #[test]
    fn unwanted_lines_do_no_harm() {
        let lines: &[&[u8]] = &[
            b"y",
            b"y one",
            b"y{a=\"b} 1",
            b"y{a=\"\xFF\"} 1",
            b"\xFF\xFE\x00",
            b"9x 1",
            b"{} 1",
            b"<html>",
            b"x_total 5",
            b"xx 5",
            b"x: 5",
            b"x_by_reason{reason=\"x 5\"} 5",
            b"X 5",
            b"y{a=\"x 5\"} 1",
            b"y{a=\"\\nx 5\"} 1",
            b"y{a=\"} x 5\"} 1",
            b"y x 5",
            b"\rx 5",
            b"\x0Bx 5",
            b"\xEF\xBB\xBFx 5",
            b"-x 5",
            b"# x 5",
            b"#x 5",
            b" \t# HELP x\tx 5",
            b"# HELP x y\\nx 5",
            b"# TYPE x nonsense",
            b"# \xFF",
            b"#",
            b"",
            b" \t",
        ];
        for line in lines {
            for end in ["\n", "\r\n"] {
                let once = [*line, end.as_bytes()].concat();
                let body = [&once, b"x 1\n".as_slice(), &once, &once, b"x{a=\"b\"} 2\n", &once].concat();
                assert_eq!(values(&body), Ok(vec![1.0, 2.0]), "{:?}", String::from_utf8_lossy(line));
            }
        }
    }

    #[test]
    fn names_that_start_alike_are_told_apart() {
        let names = ["x", "x_by_reason", "x_by", "vllm:long_enough_to_share_its_start_a", "vllm:long_enough_to_share"];
        let body = "x_by_reason{reason=\"x\"} 2\nx_by_r 9\nx 1\nx_by 3\nvllm:long_enough_to_share 5\n\
                    vllm:long_enough_to_share_ 9\nvllm:long_enough_to_share_its_start_a 4\nvllm:long 9\n";
        let samples = read(&names, body).expect("valid");
        let values: Vec<Vec<f64>> =
            (0..names.len()).map(|id| samples.of(id).iter().map(|s| s.value).collect()).collect();
        assert_eq!(values, [[1.0], [2.0], [3.0], [4.0], [5.0]]);
    }

    #[test]
    fn names_have_dense_ids_in_their_order() {
        let names = Names::new(["b", "a", "b", "not a name", "", "c"]);
        assert_eq!((names.len(), names.is_empty()), (5, false));
        assert_eq!(
            ["b", "a", "not a name", "", "c", "d"].map(|n| names.id(n)),
            [Some(0), Some(1), Some(2), Some(3), Some(4), None]
        );
        let samples = read(&["b", "a", "not a name", "", "c"], "c 3\n 9\nnot a name 1\na 1\n").expect("valid");
        assert_eq!([0, 1, 2, 3, 4, 5].map(|id| samples.of(id).len()), [0, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn without_wanted_names_a_body_is_judged_all_the_same() {
        assert!(Names::new([""; 0]).is_empty());
        assert_eq!(read(&[], "x 1\ny{ 2\n"), Ok(Samples::default()));
        assert_eq!(read(&[], "x one\ny{ 2\n"), Err(Error::NotExposition { line: 1 }));
        assert_eq!(read(&[], "x 1\ny 2"), Err(Error::Truncated { line: 2 }));
    }

    #[test]
    fn of_equal_label_sets_the_first_counts() {
        assert_eq!(values("x 1\nx 2\n"), Ok(vec![1.0]));
        assert_eq!(values("x 1\nx{} 2\n"), Ok(vec![1.0]));
        let body = "x{a=\"1\",b=\"2\"} 3\nx{a=\"1\"} 1\nx{b=\"2\",a=\"1\",} 4\n";
        let samples = read(&["x"], body).expect("valid");
        assert_eq!(samples.of(0), [sample(&[("a", "1")], 1.0), sample(&[("a", "1"), ("b", "2")], 3.0)]);
        // A value that is left out is the first all the same.
        for left_out in ["NaN", "+Inf", "-1"] {
            assert_eq!(values(format!("x {left_out}\nx 2\n")), Ok(vec![]), "{left_out}");
            assert_eq!(values(format!("x 2\nx {left_out}\n")), Ok(vec![2.0]), "{left_out}");
        }
        // A later one has to parse.
        assert!(matches!(values("x 1\nx one\n"), Err(Error::BadLine { line: 2, .. })));
    }

    #[test]
    fn samples_are_sorted_by_name_and_label_set() {
        let body = "b{z=\"1\"} 1\na{l=\"b\"} 2\nb 3\na{l=\"a\"} 4\nb{a=\"1\",z=\"1\"} 5\n";
        let samples = read(&["a", "b"], body).expect("valid");
        assert_eq!(samples.of(0), [sample(&[("l", "a")], 4.0), sample(&[("l", "b")], 2.0)]);
        assert_eq!(
            samples.of(1),
            [sample(&[], 3.0), sample(&[("a", "1"), ("z", "1")], 5.0), sample(&[("z", "1")], 1.0)]
        );
        assert!(samples.of(2).is_empty());
    }

    #[test]
    fn a_type_is_not_required_and_means_nothing() {
        assert_eq!(values("x 1\n"), Ok(vec![1.0]));
        assert_eq!(values("# TYPE x histogram\nx 1\n# TYPE x gauge\n"), Ok(vec![1.0]));
        // A family without a type behind one that is skipped.
        assert_eq!(values("# TYPE y histogram\ny_bucket{le=\"1\"} 7\nx 1\ny_sum 8\n"), Ok(vec![1.0]));
    }

    #[test]
    fn the_end_of_openmetrics_may_lack_its_newline() {
        for end in ["# EOF\n", "# EOF", "# EOF\r\n", " # EOF"] {
            assert_eq!(values(format!("x 1\n{end}")), Ok(vec![1.0]), "{end:?}");
            assert_eq!(values(end), Ok(vec![]), "{end:?}");
        }
        for end in ["#", "# ", "# E", "# EO", "# EOFF", "# EOF ", "# EOF\r", "#EOF", "# eof"] {
            assert_eq!(values(format!("x 1\n{end}")), Err(Error::Truncated { line: 2 }), "{end:?}");
        }
        // Nothing follows it in OpenMetrics; to the text format it is a comment.
        assert_eq!(values("x 1\n# EOF\nx{a=\"b\"} 2\n"), Ok(vec![1.0, 2.0]));
    }

    #[test]
    fn a_body_without_a_valid_line_is_no_exposition() {
        let bodies: &[(&[u8], usize)] = &[
            (b"\n", 1),
            (b"\n\r\n \t\n", 1),
            (b"<!DOCTYPE html>\n<html>\n</html>\n", 1),
            (b"\n\n  <html>\n", 3),
            (b"{\"kind\":\"Status\",\"code\":503}\n", 1),
            (b"{\n  \"x\": 1\n}\n", 1),
            (b"ok\n", 1),
            (b"Not Found\n", 1),
            (b"\x1F\x8B\x08\x00\x00\n\x00\xFF\n", 1),
            (b"\r\n\x00\x01\n", 2),
            (b"x_total\ny{\n", 1),
            (b"x: 1 2 3\n", 1),
            (b"9 1\n", 1),
            (b"{} 1\n", 1),
            // Without a newline too, and a valid last line is no witness: it may be cut.
            (b"<html>", 1),
            (b"x 1", 1),
            (b"x", 1),
            (b"y 1", 1),
            (b" ", 1),
            (b"\r", 1),
            (b"# HELP", 1),
            (b"\n\ny 1", 3),
            (b"\n<html>\ny 1", 2),
        ];
        for (body, line) in bodies {
            assert_eq!(values(body), Err(Error::NotExposition { line: *line }), "{:?}", String::from_utf8_lossy(body));
        }
        // One valid line is enough, wherever it stands.
        for body in
            ["<html>\n# x\n", "<html>\ny 1\n", "y 1\n<html>\n", "<html>\nx NaN\n", "#\n", "\n\n y{a=\"b\"} 1 2\r\n"]
        {
            assert_eq!(values(body), Ok(vec![]), "{body:?}");
        }
    }

    #[test]
    fn an_empty_body_is_valid() {
        assert_eq!(values(""), Ok(vec![]));
        let names = Names::new(["x"]);
        let mut reader = Reader::new(&names);
        assert_eq!(reader.push(b""), Ok(()));
        assert_eq!(reader.finish().map(|samples| samples.of(0).len()), Ok(0));
    }

    #[test]
    fn a_last_line_without_its_newline_is_a_body_cut_short() {
        let body = "# TYPE x gauge\nx{a=\"b\"} 12 # {} 1\ny 1\n  x 3\r\n";
        let wanted = [12.0, 3.0];
        for end in 1..=body.len() {
            let lines = body[..end].matches('\n').count();
            let expected = if body[..end].ends_with('\n') {
                let values = [0, 0, 1, 1, 2][lines];
                Ok(wanted[..values].iter().rev().copied().collect())
            } else if lines == 0 {
                Err(Error::NotExposition { line: 1 })
            } else {
                Err(Error::Truncated { line: lines + 1 })
            };
            assert_eq!(values(&body[..end]), expected, "{:?}", &body[..end]);
        }
    }

    #[test]
    fn a_long_line_is_read_where_it_is_wanted_and_skipped_where_it_is_not() {
        let long = "v".repeat(3 * LONGEST_WITNESS);
        let body = format!("y{{a=\"{long}\"}} 1\nx{{a=\"{long}\"}} 2\n");
        assert_eq!(values(&body), Ok(vec![2.0]));
        // Without another line, one as long as the limit is a witness and a longer one is not.
        let line = |length: usize| format!("y{{a=\"{}\"}} 1", "v".repeat(length - 9));
        for end in ["\n", "\r\n"] {
            assert_eq!(values(line(LONGEST_WITNESS) + end), Ok(vec![]));
            assert_eq!(values(line(LONGEST_WITNESS + 1) + end), Err(Error::NotExposition { line: 1 }));
        }
    }

    #[test]
    fn a_failed_reader_keeps_its_error() {
        let names = Names::new(["x"]);
        let mut reader = Reader::new(&names);
        let failed = reader.push(b"x one\n");
        assert!(matches!(failed, Err(Error::BadLine { line: 1, .. })));
        assert_eq!(reader.push(b"x 1\n"), failed);
        assert_eq!(reader.finish().map(|_| ()), failed);
    }

    #[test]
    fn a_reader_is_ready_for_the_next_body() {
        let names = Names::new(["x"]);
        let mut reader = Reader::new(&names);
        let bodies =
            ["x{a=\"b\"} 1\nx 2\n", "x one\n", "<html>\n", "x 1\nx{a=\"b", "# TYP", "", "y 1\n \t", "x 3\n", "\n"];
        for _ in 0..2 {
            for body in bodies {
                let _ = reader.push(body.as_bytes());
                assert_eq!(reader.take(), read(&["x"], body), "{body:?}");
            }
        }
    }

    #[test]
    fn label_sets_are_canonical() {
        let labels = Labels::new(&mut [("b", "2"), ("a", ""), ("c", "3")]);
        assert_eq!(labels, Labels::new(&mut [("c", "3"), ("b", "2"), ("a", "")]));
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", ""), ("b", "2"), ("c", "3")]);
        assert_eq!(["a", "b", "d"].map(|name| labels.get(name)), [Some(""), Some("2"), None]);
        assert_eq!(labels.without(|name| name == "b"), Labels::new(&mut [("a", ""), ("c", "3")]));
        assert_eq!(labels.without(|_| true), Labels::default());
        assert_eq!(format!("{labels:?}"), r#"{"a": "", "b": "2", "c": "3"}"#);
        // Names and values do not run into each other.
        assert_ne!(Labels::new(&mut [("a", "bc")]), Labels::new(&mut [("ab", "c")]));
    }
}
