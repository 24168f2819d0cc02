//! Checks the table of rules and tests, `tests/rules.md`: that each named test exists, that none is still to be
//! written, and that every section of the contract and every heading of the specification has its rows.
//!
//! It does not run the tests that it finds; `cargo test` does.

// A failed expectation is how a test ends.
#![allow(clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const SOURCES: [&str; 14] = [
    "spec: Subresource",
    "spec: Fields and sources",
    "spec: Per-field series",
    "spec: Windowed cache hits",
    "spec: Latency, traffic, and transfer",
    "spec: Missing and partial samples",
    "spec: Scraping the Pods",
    "contract 3",
    "contract 4",
    "contract 5",
    "contract 6",
    "contract 7",
    "contract 8",
    "contract 9",
];

/// One row: the rule, where it stands, and its tests.
struct Row {
    line: usize,
    rule: String,
    source: String,
    tests: Vec<String>,
}

fn rows(table: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, line) in table.lines().enumerate() {
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else { continue };
        let cells: Vec<&str> = cells.split(" | ").map(str::trim).collect();
        if cells == ["rule", "source", "tests"] {
            continue;
        }
        assert_eq!(cells.len(), 3, "line {} has not three cells", index + 1);
        rows.push(Row {
            line: index + 1,
            rule: cells[0].to_owned(),
            source: cells[1].to_owned(),
            tests: cells[2].split(',').map(|test| test.trim().to_owned()).collect(),
        });
    }
    rows
}

/// The files in which a test of this name may be: `file::name`, or `module::tests::name`.
fn candidates(root: &Path, modules: &[&str]) -> Vec<PathBuf> {
    match modules {
        [file] => vec![root.join(format!("tests/{file}.rs")), root.join(format!("tests/{file}/main.rs"))],
        [path @ .., "tests"] => {
            let module = root.join("src").join(path.join("/"));
            vec![module.with_extension("rs"), module.join("mod.rs"), module.join("tests.rs")]
        }
        _ => Vec::new(),
    }
}

/// Whether a source has a test function of this name.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(index, line)| {
        let function = line.trim_start_matches("async ").strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name));
        let marked = || {
            let before = lines[..index].iter().rev();
            let mut attributes = before.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
            attributes.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
        };
        function.is_some_and(|rest| rest.starts_with('(')) && marked()
    })
}

fn check(root: &Path, row: &Row) -> Vec<String> {
    let mut wrong = Vec::new();
    for test in &row.tests {
        let parts: Vec<&str> = test.split("::").collect();
        let found = match parts.split_last() {
            _ if test == "?" => Err("has a test that is still to be written".to_owned()),
            Some((name, modules)) if !modules.is_empty() => {
                let sources =
                    candidates(root, modules).into_iter().filter_map(|path| std::fs::read_to_string(path).ok());
                sources
                    .map(|source| has_test(&source, name))
                    .find(|found| *found)
                    .ok_or(format!("{test} does not exist"))
            }
            _ => Err(format!("{test:?} is no test's name")),
        };
        if let Err(error) = found {
            wrong.push(format!("rules.md:{}: {error}: {}", row.line, row.rule));
        }
    }
    wrong
}

#[test]
fn every_rule_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("tests/rules.md")).expect("the table");
    let rows = rows(&table);
    let wrong: Vec<String> = rows.iter().flat_map(|row| check(root, row)).collect();
    assert!(wrong.is_empty(), "{} tests are missing:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_section_has_its_rules() {
    let rows = rows(include_str!("rules.md"));
    let found: BTreeSet<&str> = rows.iter().map(|row| row.source.as_str()).collect();
    assert_eq!(found, BTreeSet::from(SOURCES));
    let rules: BTreeSet<&str> = rows.iter().map(|row| row.rule.as_str()).collect();
    assert_eq!(rules.len(), rows.len(), "a rule stands twice");
}

#[test]
fn a_test_is_found_by_its_attribute() {
    let source =
        "#[test]\nfn one() {}\n\nfn helper() {}\n\n/// Two.\n#[tokio::test(start_paused = true)]\nasync fn two() {\n}";
    assert!(has_test(source, "one") && has_test(source, "two"));
    assert!(!has_test(source, "helper") && !has_test(source, "on") && !has_test(source, "three"));
}

#[test]
fn a_missing_test_is_told() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let row = |test: &str| Row { line: 1, rule: String::new(), source: String::new(), tests: vec![test.to_owned()] };
    assert!(check(root, &row("rules::a_missing_test_is_told")).is_empty());
    for wrong in ["?", "rules::nowhere", "nofile::a_missing_test_is_told", "a_missing_test_is_told", ""] {
        assert_eq!(check(root, &row(wrong)).len(), 1, "{wrong}");
    }
}
