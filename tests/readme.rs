//! Every promise of the README that can be checked against the code is.

use modeldeployment_exporter::catalogue::{Alternative, Catalogue, Field, Kind, Part, Read, Software, SoftwareKind};
use modeldeployment_exporter::config::VARIABLES;
use modeldeployment_exporter::discovery::file;
use modeldeployment_exporter::scrape::Cause;
use modeldeployment_exporter::snapshot::Code;
use std::io::Write;
use std::process::{Command, Stdio};

const README: &str = include_str!("../README.md");

/// The text between `<!-- name -->` and `<!-- /name -->`.
fn section(name: &str) -> &'static str {
    let (open, close) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let start = README.find(&open).unwrap_or_else(|| panic!("README.md has no {open}")) + open.len();
    let end = README[start..].find(&close).unwrap_or_else(|| panic!("README.md has no {close}"));
    README[start..start + end].trim()
}

fn read_from(read: Read) -> &'static str {
    match read {
        Read::EveryRole => "every Pod",
        Read::NotPrefillHalf => "every Pod but the prefill half of a pair",
        Read::NotDecodeHalf => "every Pod but the decode half of a pair",
        Read::PrefillHalf => "the prefill half of a pair",
        Read::DecodeHalf => "the decode half of a pair",
        Read::OutsideAPair => "a router that serves no pair",
        Read::InAPair => "a router that serves a pair",
    }
}

/// The series of a field with its label filters, its older names last.
fn series(software: &Software, field: &Field) -> String {
    if let Some((of, over)) = field.share {
        let name = |index: usize| &software.fields[index].definition.name;
        return format!("`{}` / `{}`", name(of), name(over));
    }
    let spell = |alternative: &Alternative| {
        let part = |part: &Part| {
            let series = &software.families[part.family].series;
            let Some(filter) = &part.filter else { return format!("`{series}`") };
            let values = match filter.between {
                Some((low, high)) => format!("{low}–{high}"),
                None => filter.values.join("|"),
            };
            format!("`{series}{{{}={values}}}`", filter.label)
        };
        alternative.parts.iter().map(part).collect::<Vec<_>>().join(" / ")
    };
    let mut text = spell(&field.alternatives[0]);
    for former in &field.alternatives[1..] {
        text += &format!(", formerly {}", spell(former));
    }
    // A bar would end the table's cell.
    text.replace('|', "\\|")
}

fn families(field: &Field) -> String {
    let definition = &field.definition;
    let window = definition.window.iter().flat_map(|window| [&window.hits, &window.queries]);
    let totals = definition.totals.iter().map(|total| &total.family);
    let all = [&definition.gauge].into_iter().chain(window).chain(totals);
    all.map(|family| format!("`{family}`")).collect::<Vec<_>>().join(", ")
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Gauge => "gauge",
        Kind::Ratio => "hits / queries of the window",
        Kind::Mean => "mean of the window",
        Kind::Rate => "rate of the window",
        Kind::Share => "fraction of the window",
    }
}

fn table(software: &Software) -> String {
    let mut text = String::from(
        "| Field | Kind, unit in the JSON | Series | Read from | Families on `/metrics` |\n|---|---|---|---|---|\n",
    );
    for field in &software.fields {
        text += &format!(
            "| `{}` | {}, {} | {} | {} | {} |\n",
            field.definition.name,
            kind(field.definition.kind),
            field.definition.unit,
            series(software, field),
            read_from(field.read),
            families(field)
        );
    }
    text.trim().to_owned()
}

#[test]
fn the_field_tables_are_the_catalogues() {
    let catalogue = Catalogue::embedded().unwrap();
    for software in &catalogue.software {
        let name = software.names[0].as_str();
        let expected = table(software);
        assert_eq!(section(&format!("fields {name}")), expected, "the table of {name} should be:\n\n{expected}\n");
    }
    assert_eq!(catalogue.names(SoftwareKind::Engine).len() + catalogue.names(SoftwareKind::Router).len(), 6);
}

#[test]
fn every_missing_code_is_explained_once() {
    let section = section("codes");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    for code in Code::ALL {
        let start = format!("| `{}`{} |", code.as_str(), if code.is_partial() { "" } else { " ○" });
        let found: Vec<&&str> = rows.iter().filter(|row| row.starts_with(&start)).collect();
        assert_eq!(found.len(), 1, "one row that starts with {start}");
        let cells = found[0].matches(" | ").count();
        assert_eq!(cells, 2, "code, meaning and what to do: {}", found[0]);
    }
    assert_eq!(rows.len(), Code::ALL.len());
}

#[test]
fn every_cause_of_an_unreadable_pod_is_explained() {
    let section = section("causes");
    for cause in Cause::ALL {
        assert!(section.contains(&format!("| `{}` |", cause.as_str())), "{}", cause.as_str());
    }
}

#[test]
fn the_table_of_variables_is_the_codes() {
    let row = |cells: [&str; 3]| format!("| {} | {} | {} |\n", cells[0], cells[1], cells[2]);
    let mut table = row(["variable", "default", "meaning"]) + "|---|---|---|\n";
    for variable in VARIABLES {
        let default = variable.default.map_or_else(|| "–".to_owned(), |default| format!("`{default}`"));
        table += &row([&format!("`{}`", variable.name), &default, variable.meaning]);
    }
    assert!(README.contains(&format!("\n\n{table}\n")), "the README's table should be:\n{table}");
}

#[test]
fn the_example_of_a_deployment_file_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deployment.yaml");
    std::fs::write(&path, block("## Configure one deployment", "yaml")).unwrap();
    let deployment = file::load(&path, &Catalogue::embedded().unwrap()).unwrap();
    assert_eq!(deployment.pods.len(), 2);
}

/// The first code block of a language under a heading.
fn block(heading: &str, language: &str) -> &'static str {
    let section = README.split(heading).nth(1).unwrap_or_else(|| panic!("README.md has no {heading}"));
    let block = section.split(&format!("```{language}\n")).nth(1).and_then(|rest| rest.split("```").next());
    block.unwrap_or_else(|| panic!("{heading} has no block of {language}"))
}

#[test]
fn the_commands_of_a_deployment_run_as_written() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("deployment.yaml"), block("## Configure one deployment", "yaml")).unwrap();
    let commands: Vec<&str> = block("## Configure one deployment", "sh").lines().collect();
    let [check, serve] = commands.as_slice() else { panic!("two commands: {commands:?}") };
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let run = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(directory.path()).env_clear().env("PATH", &path);
        command.stdin(Stdio::null());
        command
    };
    let output = run(check).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("chat-server-0"));
    // The other serves until it is stopped; on a free port, for the default one may be taken.
    let stopped = format!("timeout --preserve-status 2 env {serve}");
    let output = run(&stopped).env("LISTEN_ADDRESS", "127.0.0.1:0").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && log.contains("listening on"), "{log}");
}

#[test]
fn prometheus_takes_the_scrape_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prometheus.yaml");
    std::fs::File::create(&path).unwrap().write_all(block("## Scrape it", "yaml").as_bytes()).unwrap();
    let output = Command::new("promtool").args(["check", "config"]).arg(&path).output().expect("promtool runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn every_family_is_in_a_table() {
    for family in modeldeployment_exporter::export::families::FAMILIES {
        let name = family.name.strip_prefix("modeldeployment_").unwrap_or(family.name);
        let listed = name.starts_with("exporter_") || name.starts_with("process_");
        let found = ["", "modeldeployment_", "_"].iter().any(|prefix| README.contains(&format!("`{prefix}{name}`")));
        assert!(listed || found, "{}", family.name);
    }
}
