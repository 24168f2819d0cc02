//! What the JSON object must say of a router, given what the router has counted since its start.

use crate::Counts;
use crate::events::{Exported, Scenario};
use crate::exporter::POD;
use crate::exposition::Sample;
use serde_json::Value;

/// The codes of missing entries that do not make the object partial.
const HARMLESS: [&str; 3] = ["not-exported-yet", "unsupported-source", "idle"];

/// Every difference between the object and what it must say.
pub fn check(object: &Value, scenario: &Scenario, counted: &Counts, router: &[Sample]) -> Vec<String> {
    let mut wrong = Vec::new();
    let exports = |source: &str| router.iter().any(|sample| sample.name == source);
    for exported in scenario.exported {
        let name = exported.family.replace('_', "-");
        let found = entry(object, "traffic", "name", &name);
        let missing = entry(object, "missing", "source", exported.source).map(|entry| entry["code"].clone());
        if exports(exported.source) {
            let samples = counted[exported.family];
            match found {
                Some(found) => wrong.extend(rate(found, exported, samples)),
                None => wrong.push(format!("no {name} in traffic, but {missing:?}")),
            }
        } else {
            let code = if exported.beside.is_some_and(exports) { "not-exported-yet" } else { "metric-absent" };
            if found.is_some() || missing.as_ref().is_none_or(|missing| missing != code) {
                wrong
                    .push(format!("{name} is {found:?} and missing as {missing:?}, but the router does not export it"));
            }
        }
    }
    wrong.extend(ratio(object, scenario, counted, exports));
    for source in scenario.unsupported {
        let missing = entry(object, "missing", "source", source).map(|entry| &entry["code"]);
        if missing.is_none_or(|code| code != "unsupported-source") {
            wrong.push(format!("{source} is missing as {missing:?}, not as unsupported-source"));
        }
    }
    let known = scenario.exported.iter().map(|exported| exported.family.replace('_', "-"));
    let known: Vec<String> = known.chain(scenario.ratio.then(|| "error-ratio".to_owned())).collect();
    for entry in entries(object, "traffic") {
        let of_the_router = entry["pod"] == POD && entry["scope"] == "router";
        if !of_the_router || known.iter().all(|name| entry["name"] != **name) {
            wrong.push(format!("an entry that is not the router's: {entry}"));
        }
    }
    let partial = entries(object, "missing").any(|entry| HARMLESS.iter().all(|code| entry["code"] != **code));
    if object["partial"] != partial {
        wrong.push(format!("partial is {} with {}", object["partial"], object["missing"]));
    }
    wrong
}

/// A rate's entry: its samples are what was counted, its value the samples over its window.
fn rate(found: &Value, exported: &Exported, samples: f64) -> Option<String> {
    let seconds = found["windowSeconds"].as_f64().unwrap_or(0.0);
    let value = found["value"].as_f64().unwrap_or(f64::NAN);
    let right = found["samples"].as_f64() == Some(samples)
        && found["source"] == exported.source
        && seconds > 0.0
        && (value * seconds - samples).abs() < 1e-6 * samples.max(1.0);
    (!right).then(|| format!("{} samples expected in {found}", samples))
}

/// `error-ratio` is there exactly if the router has it and both of its counters are exported.
fn ratio(object: &Value, scenario: &Scenario, counted: &Counts, exports: impl Fn(&str) -> bool) -> Option<String> {
    let found = entry(object, "traffic", "name", "error-ratio");
    let counter = |family| scenario.exported.iter().find(|exported| exported.family == family);
    let expected = match (counter("errors"), counter("requests")) {
        (Some(errors), Some(requests)) if scenario.ratio && exports(errors.source) && exports(requests.source) => {
            Some(counted["errors"] / counted["requests"])
        }
        _ => None,
    };
    let value = found.map(|found| found["value"].as_f64().unwrap_or(f64::NAN));
    let right = match (value, expected) {
        (Some(value), Some(expected)) => (value - expected).abs() < 1e-9,
        (value, expected) => value.is_none() && expected.is_none(),
    };
    (!right).then(|| format!("error-ratio is {value:?}, not {expected:?}"))
}

/// A difference in a gauge of `processing[]`.
pub fn gauge(object: &Value, (name, value): (&str, f64)) -> Option<String> {
    let found = entry(object, "processing", "name", name);
    let right = found.is_some_and(|found| found["value"].as_f64() == Some(value) && found["scope"] == "router");
    (!right).then(|| format!("JSON: {name} is {found:?}, not {value}; missing: {}", object["missing"]))
}

fn entries<'a>(object: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    object[list].as_array().into_iter().flatten()
}

fn entry<'a>(object: &'a Value, list: &str, key: &str, value: &str) -> Option<&'a Value> {
    entries(object, list).find(|entry| entry[key] == value)
}
