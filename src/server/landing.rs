//! The landing page: where things are, how the deployment stands, what is missing.
//!
//! Plain HTML without a script; every value from outside is escaped.

use crate::state::{Newest, Published, View};
use std::fmt::{self, Display, Formatter};

/// A text inside HTML, also inside a quoted attribute.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(['&', '<', '>', '"', '\'']) {
            let (text, special) = match part.char_indices().next_back() {
                Some((at, c)) => (part.get(..at).unwrap_or_default(), c),
                None => continue,
            };
            f.write_str(text)?;
            match special {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => write!(f, "{other}")?,
            }
        }
        Ok(())
    }
}

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="15">
<title>modeldeployment-exporter</title>
<style>
:root { color-scheme: light dark; --ink: #1a1a1a; --ground: #ffffff; --line: #c8c8c8; --link: #0b57a4 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --ground: #16181a; --line: #45494d; --link: #8ab8f0 } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--ground) }
a { color: var(--link) }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere }
</style>
</head>
<body>
<h1>modeldeployment-exporter</h1>
"#;

/// One sentence about the newest round.
fn standing(view: &View) -> &'static str {
    match &view.newest {
        Newest::None if view.synced && view.deployment.is_none() => "The model deployment does not exist.",
        Newest::None => "No round has finished yet.",
        Newest::TooOld(_) => "The newest round is too old.",
        Newest::Fresh(round) if !round.readable => "No Pod could be read in the newest round.",
        Newest::Fresh(round) if round.object.partial => "The newest round is partial.",
        Newest::Fresh(_) => "The newest round is complete.",
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

fn missing(round: &Published, f: &mut Formatter<'_>) -> fmt::Result {
    if round.object.missing.is_empty() {
        return f.write_str("<p>Nothing is missing.</p>\n");
    }
    f.write_str("<table>\n<thead><tr><th>Pod</th><th>Source</th><th>Code</th><th>Reason</th></tr></thead>\n<tbody>\n")?;
    for entry in &round.object.missing {
        writeln!(
            f,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            Escaped(&entry.pod),
            Escaped(&entry.source),
            entry.code.as_str(),
            Escaped(&entry.reason)
        )?;
    }
    f.write_str("</tbody>\n</table>\n")
}

struct Page<'a>(&'a View);

impl Display for Page<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let view = self.0;
        f.write_str(HEAD)?;
        if let Some(deployment) = &view.deployment {
            let (namespace, name) = (&deployment.namespace, &deployment.name);
            writeln!(f, "<h2>{}/{}</h2>", Escaped(namespace), Escaped(name))?;
        }
        writeln!(f, "<p>{}</p>", standing(view))?;
        f.write_str("<ul>\n<li><a href=\"metrics\">/metrics</a></li>\n")?;
        if let Some(deployment) = &view.deployment {
            let (namespace, name) = (segment(&deployment.namespace), segment(&deployment.name));
            let path = format!("apis/worker.gpustack.ai/v1/namespaces/{namespace}/modeldeployments/{name}/metrics");
            writeln!(f, "<li><a href=\"{path}\">/{path}</a></li>")?;
        }
        f.write_str("<li><a href=\"healthz\">/healthz</a></li>\n<li><a href=\"readyz\">/readyz</a></li>\n</ul>\n")?;
        if let Newest::Fresh(round) | Newest::TooOld(round) = &view.newest {
            let at = humantime::format_rfc3339_seconds(round.object.timestamp);
            writeln!(f, "<h2>Missing in the round of {at}</h2>")?;
            missing(round, f)?;
        }
        f.write_str("</body>\n</html>\n")
    }
}

/// The page.
pub fn page(view: &View) -> String {
    Page(view).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        assert_eq!(
            Escaped("<a href=\"x\">'&'</a>").to_string(),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;"
        );
        assert_eq!(Escaped("größe").to_string(), "größe");
        assert_eq!(Escaped("").to_string(), "");
        assert_eq!(segment("a b/ü"), "a%20b%2F%C3%BC");
    }
}
