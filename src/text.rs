//! Text for people: values on one line, and aligned tables.
//!
//! It decides nothing about what may be shown.

/// The longest value that messages show whole, in characters.
const LONGEST_SHOWN: usize = 100;

/// A value on one line: control characters as escapes.
pub fn visible(value: &str) -> String {
    let mut shown = String::with_capacity(value.len());
    for c in value.chars() {
        if c.is_control() { shown.extend(c.escape_debug()) } else { shown.push(c) }
    }
    shown
}

/// A value on one line that is not longer than a line.
pub fn short(value: &str) -> String {
    match value.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => format!("{}…", visible(&value[..end])),
        None => visible(value),
    }
}

/// Rows with aligned columns, each line indented by two spaces.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            line += &format!("  {cell:width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_on_one_line() {
        assert_eq!(visible("it's \"a\"\n\u{1b}[1m"), "it's \"a\"\\n\\u{1b}[1m");
        assert_eq!(short("é"), "é");
        assert_eq!(short(&"é".repeat(500)), format!("{}…", "é".repeat(100)));
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "é", "c"], ["long", "b", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "  a     é  c\n  long  b\n");
    }
}
