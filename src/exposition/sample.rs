//! Parses what follows the name in a sample's line: labels, value, timestamp and exemplar.
//!
//! It is strict: what it accepts is read in full, and it guesses nothing.

use super::Labels;
use std::ops::Range;

/// Buffers that outlive a line, and the labels of the line parsed last.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Names and unescaped values, one behind the other; UTF-8.
    text: Vec<u8>,
    /// Where they are in `text`.
    labels: Vec<Label>,
    /// Label sets that were read, by their text from brace to brace: an exposition has few different
    /// ones and repeats them for every name.
    known: Vec<Option<(Vec<u8>, Labels)>>,
}

#[derive(Debug, Clone)]
struct Label {
    name: Range<usize>,
    value: Range<usize>,
}

/// A longer text is not kept, in bytes: what a hostile body makes a reader keep stays bounded.
const LONGEST_KNOWN: usize = 1024;

/// Label sets that are known at a time.
const KNOWN: usize = 256;

/// Where a label set's text is kept. The text ends with the line's last closing brace, unless an
/// exemplar follows; then it is not found, which costs time and nothing else.
fn place(rest: &[u8]) -> Option<usize> {
    let end = memchr::memrchr(b'}', rest)? + 1;
    let text = &rest[..end];
    let number = |from: usize| text.get(from..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    // Sets of one exposition differ near the front, in the middle or near the end: an engine, a rank, a path.
    let parts = [number(0), number(8), number(end / 2), number(end.saturating_sub(8))];
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mixed =
        parts.into_iter().fold(end as u64, |sum, part| (sum ^ part.unwrap_or(0)).wrapping_mul(ODD).rotate_left(29));
    Some((mixed.wrapping_mul(ODD) >> 40) as usize % KNOWN)
}

impl Scratch {
    /// The label set whose text a line goes on with, if it was read before, and the text's length.
    fn known(&self, rest: &[u8]) -> Option<(Labels, usize)> {
        let (text, labels) = self.known.get(place(rest)?)?.as_ref()?;
        rest.starts_with(text).then(|| (labels.clone(), text.len()))
    }

    /// The label set parsed last, kept under its text.
    fn remember(&mut self, text: &[u8]) -> Labels {
        let labels = Labels::from_sorted(
            self.labels.iter().map(|label| (&self.text[label.name.clone()], &self.text[label.value.clone()])),
        );
        if let Some(place) = place(text).filter(|_| text.len() <= LONGEST_KNOWN) {
            self.known.resize_with(KNOWN, || None);
            let kept = self.known[place].get_or_insert_with(|| (Vec::new(), labels.clone()));
            kept.0.clear();
            kept.0.extend_from_slice(text);
            kept.1 = labels.clone();
        }
        labels
    }

    fn clear(&mut self) {
        self.text.clear();
        self.labels.clear();
    }

    /// Sorts the labels by name and tells whether one occurs twice.
    fn sort(&mut self) -> Result<(), &'static str> {
        let Scratch { text, labels, .. } = self;
        let name = |label: &Label| &text[label.name.clone()];
        labels.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        if labels.windows(2).any(|pair| name(&pair[0]) == name(&pair[1])) {
            return Err("a label name occurs twice");
        }
        Ok(())
    }
}

/// Whether a byte separates tokens.
#[inline]
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Parses what follows the name, without the line's end. An error says what is wrong.
pub(super) fn parse(rest: &[u8], scratch: &mut Scratch) -> Result<(Labels, f64), &'static str> {
    let mut line = Cursor { rest };
    line.skip_blanks();
    let known = scratch.known(line.rest).map(|(labels, length)| {
        line.rest = &line.rest[length..];
        labels
    });
    if std::str::from_utf8(line.rest).is_err() {
        return Err("the line is not UTF-8");
    }
    let labels = match known {
        Some(labels) => labels,
        None => {
            scratch.clear();
            let before = line.rest;
            if line.eat(b'{') {
                line.labels(scratch)?;
                scratch.sort()?;
            }
            scratch.remember(&before[..before.len() - line.rest.len()])
        }
    };
    let value = line.number("the value is no number", "the value is missing")?;
    line.timestamp()?;
    if line.eat(b'#') {
        line.exemplar()?;
    }
    if line.rest.is_empty() { Ok((labels, value)) } else { Err("there is more text behind the value and timestamp") }
}

/// What is left of a line.
struct Cursor<'l> {
    rest: &'l [u8],
}

impl<'l> Cursor<'l> {
    fn skip_blanks(&mut self) {
        while let [first, rest @ ..] = self.rest
            && is_blank(*first)
        {
            self.rest = rest;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        match self.rest {
            [first, rest @ ..] if *first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn token(&mut self, belongs: impl Fn(u8) -> bool) -> &'l [u8] {
        let length = self.rest.iter().take_while(|b| belongs(**b)).count();
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        token
    }

    /// Labels behind the opening brace, up to and with the closing one.
    fn labels(&mut self, scratch: &mut Scratch) -> Result<(), &'static str> {
        loop {
            self.skip_blanks();
            if self.eat(b'}') {
                return Ok(());
            }
            let name = self.token(|b| b.is_ascii_alphanumeric() || b == b'_');
            if name.first().is_none_or(u8::is_ascii_digit) {
                return Err("a label name is missing or not valid");
            }
            if name == b"__name__" {
                return Err("the label name __name__ is reserved");
            }
            self.skip_blanks();
            if !self.eat(b'=') {
                return Err("a label name is not followed by an equals sign");
            }
            self.skip_blanks();
            if !self.eat(b'"') {
                return Err("a label value does not start with a quote");
            }
            let start = scratch.text.len();
            scratch.text.extend_from_slice(name);
            let middle = scratch.text.len();
            self.quoted(&mut scratch.text)?;
            let end = scratch.text.len();
            scratch.labels.push(Label { name: start..middle, value: middle..end });
            self.skip_blanks();
            if !self.eat(b',') {
                return if self.eat(b'}') {
                    Ok(())
                } else {
                    Err("a label is not followed by a comma or closing brace")
                };
            }
        }
    }

    /// A label value behind its opening quote, up to and with the closing one, unescaped.
    fn quoted(&mut self, text: &mut Vec<u8>) -> Result<(), &'static str> {
        loop {
            let Some(at) = memchr::memchr2(b'"', b'\\', self.rest) else {
                return Err("a label value has no closing quote");
            };
            let (plain, special) = self.rest.split_at(at);
            text.extend_from_slice(plain);
            let (byte, length) = match special {
                [b'"', ..] => {
                    self.rest = &special[1..];
                    return Ok(());
                }
                [b'\\', b'n', ..] => (b'\n', 2),
                [b'\\', escaped @ (b'"' | b'\\'), ..] => (*escaped, 2),
                _ => return Err("a label value has an escape other than \\\\, \\\" and \\n"),
            };
            text.push(byte);
            self.rest = &special[length..];
        }
    }

    /// A number and the blanks around it.
    fn number(&mut self, wrong: &'static str, missing: &'static str) -> Result<f64, &'static str> {
        self.skip_blanks();
        let token = self.token(|b| !is_blank(b));
        self.skip_blanks();
        if token.is_empty() { Err(missing) } else { number(token).ok_or(wrong) }
    }

    /// A timestamp, if there is one; its value is of no use here. Whole milliseconds in the text
    /// format and seconds in OpenMetrics, so any finite number.
    fn timestamp(&mut self) -> Result<(), &'static str> {
        if self.rest.is_empty() || self.rest[0] == b'#' {
            return Ok(());
        }
        let wrong = "the timestamp is no finite number";
        if self.number(wrong, wrong)?.is_finite() { Ok(()) } else { Err(wrong) }
    }

    /// An OpenMetrics exemplar behind its `#`.
    fn exemplar(&mut self) -> Result<(), &'static str> {
        self.skip_blanks();
        if !self.eat(b'{') {
            return Err("there is more text behind the value and timestamp");
        }
        let mut scratch = Scratch::default();
        self.labels(&mut scratch)?;
        scratch.sort()?;
        self.number("the exemplar's value is no number", "the exemplar's value is missing")?;
        self.timestamp()
    }
}

/// A number as Go's `ParseFloat` reads it for this format (`expfmt` refuses hexadecimal digits and
/// underscores). Rust's parser takes two things more: a signed NaN, and digits beyond the range.
fn number(token: &[u8]) -> Option<f64> {
    let value: f64 = std::str::from_utf8(token).ok()?.parse().ok()?;
    let signed = matches!(token, [b'+' | b'-', ..]);
    let digits = token.iter().any(u8::is_ascii_digit);
    let refused = (value.is_nan() && signed) || (value.is_infinite() && digits);
    if refused { None } else { Some(value) }
}
