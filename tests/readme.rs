//! What the README says about the configuration, compared with the code.

use modeldeployment_exporter::catalogue::Catalogue;
use modeldeployment_exporter::config::VARIABLES;
use modeldeployment_exporter::discovery::file;

const README: &str = include_str!("../README.md");

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
    let section = README.split("## Configure one deployment").nth(1).unwrap();
    let example = section.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deployment.yaml");
    std::fs::write(&path, example).unwrap();
    let deployment = file::load(&path, &Catalogue::embedded().unwrap()).unwrap();
    assert_eq!(deployment.pods.len(), 2);
}
