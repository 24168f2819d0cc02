//! Which format and encoding a client prefers, by the quality values of its headers (RFC 9110,
//! section 12).
//!
//! Nothing is ever refused: a header that says nothing usable gets the default.

use crate::export::Format;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{HeaderMap, HeaderName};

/// One element of a header's list: its lower-case value, its parameters and its quality.
#[derive(Debug, PartialEq)]
struct Element {
    value: String,
    parameters: Vec<(String, String)>,
    quality: f64,
}

/// Splits at a separator that is not inside a quoted string.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |c: char| {
        if escaped {
            escaped = false;
            return false;
        }
        match c {
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        c == separator && !quoted
    })
}

/// The elements of a header over all its lines; none if one of them is malformed.
fn elements(headers: &HeaderMap, name: HeaderName) -> Option<Vec<Element>> {
    let mut found = Vec::new();
    for line in headers.get_all(name) {
        for element in split(line.to_str().ok()?, ',').map(str::trim).filter(|element| !element.is_empty()) {
            let mut pieces = split(element, ';').map(str::trim);
            let value = pieces.next()?.to_ascii_lowercase();
            let (mut parameters, mut quality) = (Vec::new(), 1.0);
            for piece in pieces.filter(|piece| !piece.is_empty()) {
                let (key, text) = piece.split_once('=')?;
                let key = key.trim().to_ascii_lowercase();
                let text = text.trim().trim_matches('"');
                if key == "q" {
                    quality = text.parse().ok().filter(|quality| (0.0..=1.0).contains(quality))?;
                } else {
                    parameters.push((key, text.to_ascii_lowercase()));
                }
            }
            if value.is_empty() {
                return None;
            }
            found.push(Element { value, parameters, quality });
        }
    }
    Some(found)
}

/// Quality and specificity with which a list accepts a type: those of the most specific range that matches.
fn accepted(elements: &[Element], kind: &str, subtype: &str, version: &str) -> (f64, u8) {
    let specificity = |element: &Element| {
        let (k, s) = element.value.split_once('/')?;
        match (k, s) {
            ("*", "*") => Some(1),
            (k, "*") if k == kind => Some(2),
            (k, s) if k == kind && s == subtype => match element.parameters.iter().find(|(key, _)| key == "version") {
                None => Some(3),
                Some((_, wanted)) => (wanted == version).then_some(4),
            },
            _ => None,
        }
    };
    let matching = elements.iter().filter_map(|element| Some((specificity(element)?, element.quality)));
    // Of two equally specific ranges the better quality counts.
    let best = matching.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    best.map_or((0.0, 0), |(specificity, quality)| (quality, specificity))
}

/// The format of `/metrics`: OpenMetrics where it is preferred to text, by quality and then by being
/// named more specifically.
pub fn format(headers: &HeaderMap) -> Format {
    let Some(elements) = elements(headers, ACCEPT) else { return Format::Text };
    let text = accepted(&elements, "text", "plain", "0.0.4");
    let open = accepted(&elements, "application", "openmetrics-text", "1.0.0");
    if open.0 > 0.0 && (open.0 > text.0 || (open.0 == text.0 && open.1 > text.1)) {
        Format::OpenMetrics
    } else {
        Format::Text
    }
}

/// Whether the answer is compressed with gzip.
pub fn gzip(headers: &HeaderMap) -> bool {
    let Some(elements) = elements(headers, ACCEPT_ENCODING) else { return false };
    let quality = |names: &[&str]| {
        let named = elements.iter().filter(|element| names.contains(&element.value.as_str()));
        named.map(|element| element.quality).reduce(f64::max)
    };
    let any = quality(&["*"]);
    let gzip = quality(&["gzip", "x-gzip"]).or(any).unwrap_or(0.0);
    let identity = quality(&["identity"]).or(any);
    gzip > 0.0 && identity.is_none_or(|identity| gzip >= identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(name: HeaderName, lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&name, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn formats() {
        use Format::{OpenMetrics, Text};
        const PROMETHEUS_2: &str = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;\
            version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let cases: &[(&[&str], Format)] = &[
            (&[], Text),
            (&[""], Text),
            (&["*/*"], Text),
            (&["text/plain"], Text),
            (&["text/plain;version=0.0.4"], Text),
            (&["text/html,application/xhtml+xml,*/*;q=0.8"], Text),
            (&[PROMETHEUS_2], OpenMetrics),
            (&[PROMETHEUS_3], OpenMetrics),
            (&["application/openmetrics-text"], OpenMetrics),
            (&["application/openmetrics-text; version=1.0.0; charset=utf-8"], OpenMetrics),
            (&["Application/OpenMetrics-Text; Version=\"1.0.0\""], OpenMetrics),
            (&["application/openmetrics-text;version=0.0.1"], Text),
            (&["application/openmetrics-text;version=2.0.0, text/plain;q=0.1"], Text),
            (&["application/openmetrics-text;q=0"], Text),
            (&["application/openmetrics-text;q=0.3,text/plain;q=0.4"], Text),
            (&["application/openmetrics-text,text/plain"], Text),
            (&["application/openmetrics-text,*/*"], OpenMetrics),
            (&["application/*"], OpenMetrics),
            (&["application/*;q=0.5,text/*;q=0.6"], Text),
            (&["*/*;q=0.9,text/plain;q=0.1"], OpenMetrics),
            (&["*/*,application/openmetrics-text;q=0"], Text),
            (&["text/plain;q=0.2", "application/openmetrics-text;q=0.7"], OpenMetrics),
            (&["application/json"], Text),
            (&["text/plain;q=0"], Text),
            (&["application/openmetrics-text;q=high"], Text),
            (&["application/openmetrics-text;q=2"], Text),
            (&["application/openmetrics-text;q=NaN"], Text),
            (&["application/openmetrics-text;version"], Text),
            (&[";q=1,application/openmetrics-text"], Text),
            (&["application/openmetrics-text\u{e9}"], Text),
            (&["text/html;a=\"x,y;z\",application/openmetrics-text"], OpenMetrics),
        ];
        for (lines, expected) in cases {
            assert_eq!(format(&headers(ACCEPT, lines)), *expected, "{lines:?}");
        }
    }

    #[test]
    fn encodings() {
        let cases: &[(&[&str], bool)] = &[
            (&[], false),
            (&[""], false),
            (&["gzip"], true),
            (&["GZIP"], true),
            (&["x-gzip"], true),
            (&["gzip, deflate, br"], true),
            (&["gzip;q=0"], false),
            (&["gzip;q=0.001"], true),
            (&["*"], true),
            (&["*;q=0"], false),
            (&["gzip;q=0, *"], false),
            (&["deflate, br"], false),
            (&["identity"], false),
            (&["identity;q=0"], false),
            (&["identity;q=0, gzip;q=0.1"], true),
            (&["identity;q=0, *;q=0.1"], true),
            (&["gzip;q=0.5, identity"], false),
            (&["gzip;q=0.5, identity;q=0.5"], true),
            (&["deflate", "gzip"], true),
            (&["gzip;q=x"], false),
        ];
        for (lines, expected) in cases {
            assert_eq!(gzip(&headers(ACCEPT_ENCODING, lines)), *expected, "{lines:?}");
        }
    }
}
