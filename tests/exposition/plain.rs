//! A plain parser of the text exposition: the whole body in memory, every line read strictly,
//! nothing done for speed. It shares no code with the reader that it checks.

use std::collections::BTreeMap;

/// A label set.
pub type LabelSet = BTreeMap<String, String>;

/// What a whole body is.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// The values of the wanted names, by name and label set.
    Samples(BTreeMap<String, BTreeMap<LabelSet, f64>>),
    /// No line is valid; the first line that is not blank, from 1, or 1.
    NotExposition(usize),
    /// This line has a wanted name and does not parse.
    BadLine(usize),
    /// This line is the last, lacks its newline, and an earlier one was valid.
    Truncated(usize),
}

/// What one line is.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    Blank,
    Comment,
    Sample {
        name: String,
        labels: LabelSet,
        value: f64,
    },
    /// Not valid; the name it starts with, perhaps an empty one.
    Bad {
        name: String,
    },
}

/// Reads a body.
pub fn read(body: &[u8], wanted: &[String]) -> Body {
    let mut lines: Vec<&[u8]> = body.split(|b| *b == b'\n').collect();
    // What follows the last newline is a line of its own only where it is not empty.
    let mut unfinished = lines.pop().filter(|line| !line.is_empty());
    if let Some(last) = unfinished
        && trim_start(last) == b"# EOF"
    {
        lines.push(last);
        unfinished = None;
    }

    let mut samples: BTreeMap<String, BTreeMap<LabelSet, f64>> = BTreeMap::new();
    let mut valid = false;
    let mut first_bad = None;
    for (index, line) in lines.iter().enumerate() {
        match read_line(line) {
            Line::Blank => {}
            Line::Comment => valid = true,
            Line::Sample { name, labels, value } => {
                valid = true;
                if wanted.contains(&name) {
                    samples.entry(name).or_default().entry(labels).or_insert(value);
                }
            }
            Line::Bad { name } if wanted.contains(&name) => return Body::BadLine(index + 1),
            Line::Bad { .. } => first_bad = first_bad.or(Some(index + 1)),
        }
    }
    if unfinished.is_some() {
        let line = lines.len() + 1;
        return if valid { Body::Truncated(line) } else { Body::NotExposition(first_bad.unwrap_or(line)) };
    }
    if !lines.is_empty() && !valid {
        return Body::NotExposition(first_bad.unwrap_or(1));
    }
    for sets in samples.values_mut() {
        sets.retain(|_, value| value.is_finite() && *value >= 0.0);
    }
    samples.retain(|_, sets| !sets.is_empty());
    Body::Samples(samples)
}

/// Reads a line without its newline.
pub fn read_line(line: &[u8]) -> Line {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = trim_start(line);
    if line.is_empty() {
        return Line::Blank;
    }
    if line[0] == b'#' {
        return Line::Comment;
    }
    let name_end = line.iter().position(|b| !(b.is_ascii_alphanumeric() || b"_:".contains(b))).unwrap_or(line.len());
    let name = String::from_utf8(line[..name_end].to_vec()).expect("a name is ASCII");
    let parsed = std::str::from_utf8(&line[name_end..]).ok().and_then(after_name);
    match parsed {
        Some((labels, value)) if !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) => {
            Line::Sample { name, labels, value }
        }
        _ => Line::Bad { name },
    }
}

fn trim_start(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|b| *b != b' ' && *b != b'\t').unwrap_or(line.len());
    &line[start..]
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

fn after_name(text: &str) -> Option<(LabelSet, f64)> {
    let text = trim(text);
    let (labels, text) = match text.strip_prefix('{') {
        Some(inside) => read_labels(inside)?,
        None => (LabelSet::new(), text),
    };
    // A number holds no '#', so the first one behind the labels starts the exemplar.
    let (numbers, exemplar) = match text.split_once('#') {
        Some((numbers, exemplar)) if numbers.ends_with([' ', '\t']) => (numbers, Some(exemplar)),
        Some(_) => return None,
        None => (text, None),
    };
    let value = value_and_timestamp(numbers)?;
    if let Some(exemplar) = exemplar {
        let (_, numbers) = read_labels(trim(exemplar).strip_prefix('{')?)?;
        value_and_timestamp(numbers)?;
    }
    Some((labels, value))
}

fn value_and_timestamp(text: &str) -> Option<f64> {
    let numbers: Vec<&str> = text.split([' ', '\t']).filter(|token| !token.is_empty()).collect();
    match numbers.as_slice() {
        [value] => number(value),
        [value, timestamp] => number(timestamp).filter(|t| t.is_finite()).and(number(value)),
        _ => None,
    }
}

/// Labels behind the opening brace, and what follows the closing one.
fn read_labels(text: &str) -> Option<(LabelSet, &str)> {
    let mut labels = LabelSet::new();
    let mut rest = trim(text);
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_end_matches([' ', '\t']);
        let letters = |c: char| c == '_' || c.is_ascii_alphanumeric();
        if name.is_empty() || !name.chars().all(letters) || name.as_bytes()[0].is_ascii_digit() || name == "__name__" {
            return None;
        }
        let (value, after) = read_quoted(trim(after))?;
        if labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        rest = trim(after);
        match rest.strip_prefix(',') {
            Some(after) => rest = trim(after),
            None if rest.starts_with('}') => {}
            None => return None,
        }
    }
}

fn read_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.strip_prefix('"')?.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(match characters.next()? {
                'n' => '\n',
                same @ ('"' | '\\') => same,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
}

/// A decimal number, an infinity with or without sign, or an unsigned NaN.
fn number(text: &str) -> Option<f64> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    match digits.to_ascii_lowercase().as_str() {
        "nan" => return (digits.len() == text.len()).then_some(f64::NAN),
        "inf" | "infinity" => return Some(sign * f64::INFINITY),
        _ => {}
    }
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    if let Some(exponent) = exponent {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if exponent.is_empty() || !all_digits(exponent) {
            return None;
        }
    }
    text.parse().ok().filter(|value: &f64| value.is_finite())
}
