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

mod sample;
mod sieve;

use sample::Scratch;
use sieve::Sieve;
use std::fmt;

/// An unwanted line longer than this does not count as valid while no line has been valid yet:
/// deciding would need all of it in memory. Bytes; far above any label set that is exported.
const LONGEST_WITNESS: usize = 16 * 1024;

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
/// Stored as `name 0xFF value 0xFE …` in one allocation: both bytes never occur in UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Labels(Box<[u8]>);

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
        Labels(bytes.into_boxed_slice())
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
    /// Sorted by id and label set.
    samples: Vec<Sample>,
    /// Of each id, where its samples end; they start where those of the id before end.
    ends: Vec<usize>,
}

impl Samples {
    /// The samples of a name, sorted by label set; empty when the exposition has none.
    pub fn of(&self, id: usize) -> &[Sample] {
        let start = id.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(id).and_then(|end| self.samples.get(start..*end)).unwrap_or(&[])
    }

    /// Samples in the order of the body, each with its id.
    fn new(mut read: Vec<(usize, Sample)>, names: usize) -> Samples {
        // Stable, so that the first of equal label sets stays the first.
        read.sort_by(|(a_id, a), (b_id, b)| (a_id, &a.labels).cmp(&(b_id, &b.labels)));
        // Before the filter: a first sample that is NaN hides the second.
        read.dedup_by(|(b_id, b), (a_id, a)| a_id == b_id && a.labels == b.labels);
        read.retain(|(_, sample)| sample.value.is_finite() && sample.value >= 0.0);
        let ends = (0..names).map(|id| read.partition_point(|(of, _)| *of <= id)).collect();
        Samples { samples: read.into_iter().map(|(_, sample)| sample).collect(), ends }
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
    /// Wanted samples in the order of the body, each with its id.
    read: Vec<(usize, Sample)>,
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
            read: Vec::new(),
            lines: 0,
            valid: false,
            first_bad: None,
            open: Open::No,
            held: Vec::new(),
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
        let read = std::mem::take(&mut self.read);
        self.held.clear();
        (self.lines, self.valid, self.first_bad, self.open, self.failed) = (0, false, None, Open::No, None);
        result.map(|()| Samples::new(read, self.names.len()))
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
    fn read_lines(&mut self, mut rest: &[u8]) -> Result<(), Error> {
        while let Some(newline) = memchr::memchr(b'\n', rest) {
            // The hot path: once the body has proved to be an exposition, an unwanted line is
            // nothing but its newline.
            if self.valid && !self.names.sieve.may_start(rest) {
                self.lines += 1;
            } else {
                self.read_line(&rest[..newline])?;
            }
            rest = &rest[newline + 1..];
        }
        Ok(())
    }

    /// Reads one line without its newline.
    fn read_line(&mut self, line: &[u8]) -> Result<(), Error> {
        self.lines += 1;
        let line = without_blanks(line.strip_suffix(b"\r").unwrap_or(line));
        if line.is_empty() {
            return Ok(());
        }
        if line[0] == b'#' {
            self.valid = true;
        } else if let Some((id, rest)) = self.names.sieve.find(line, &self.names.names) {
            let value =
                sample::parse(rest, &mut self.scratch).map_err(|what| Error::BadLine { line: self.lines, what })?;
            self.read.push((id, Sample { labels: self.scratch.labels(), value }));
            self.valid = true;
        } else if !self.valid {
            if is_sample(line, &mut self.scratch) {
                self.valid = true;
            } else {
                self.first_bad.get_or_insert(self.lines);
            }
        }
        Ok(())
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
                result
            }
            Open::No | Open::Blank => self.read_line(part),
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
