//! The real binary with a clean environment: what it prints, where, and its exit status.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const DEPLOYMENT: &str = r#"
metadata: {name: chat, namespace: team}
spec:
  engine: {name: vllm}
  kvCache: {poolRef: {name: pool}}
  router: {name: vllm-router}
  roles:
    - {name: server, replicas: 2}
    - {name: own, command: [sleep]}
pods:
  - {name: chat-server-0, role: server, url: 'http://127.0.0.1:8000/metrics?token=SECRET', args: [--api-key, SECRET]}
  - {name: chat-router-0, router: true, url: 'http://127.0.0.1:29000/metrics'}
  - {name: chat-own-0, role: own, url: 'http://127.0.0.1:1/'}
"#;

/// Variables and their values.
type Variables<'a> = &'a [(&'a str, &'a str)];

/// A directory with these deployment files.
fn files(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn run(directory: &Path, environment: &[(&str, &OsStr)], arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"))
        .current_dir(directory)
        .env_clear()
        .envs(environment.iter().copied())
        .args(arguments)
        .output()
        .unwrap()
}

/// Exit status, stdout and stderr of a run in this directory with nothing but these variables.
fn outcome(directory: &TempDir, environment: Variables<'_>, arguments: &[&str]) -> (i32, String, String) {
    let environment: Vec<(&str, &OsStr)> =
        environment.iter().map(|(name, value)| (*name, OsStr::new(*value))).collect();
    let output = run(directory.path(), &environment, arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_and_version() {
    let empty = files(&[]);
    let (code, stdout, stderr) = outcome(&empty, &[], &["--help"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    for word in ["serve", "snapshot", "check", "demo", "SCRAPE_INTERVAL", "0.0.0.0:9850"] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    let (code, stdout, _) = outcome(&empty, &[], &["--version"]);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(code, 0);
    assert!(stdout.starts_with(&format!("modeldeployment-exporter {version} (revision ")), "{stdout}");
}

#[test]
fn check_prints_the_effective_configuration_and_no_secret() {
    let directory = files(&[("d.yaml", DEPLOYMENT)]);
    let environment = [("DEPLOYMENT_FILE", "d.yaml"), ("WINDOW", "30s"), ("MAX_PODS", "1"), ("LOG_FORMAT", "")];
    let (code, stdout, stderr) = outcome(&directory, &environment, &["check"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let lines: Vec<String> = stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for expected in [
        "DEPLOYMENT_FILE d.yaml environment",
        "WINDOW 30s environment",
        "MAX_PODS 1 environment",
        "SCRAPE_INTERVAL 15s default",
        "LOG_FORMAT text default",
        "SCRAPE_CA_FILE - default",
        "Deployment team/chat, from d.yaml",
        "engine vLLM",
        "router vllm-router",
        "KV cache pool attached",
        "prefill/decode pair no",
        "router vllm-router 1 1",
        "engine/server Server 2 1 the numbers differ",
        "engine/own Server - - not managed: it has a command of its own",
        "chat-router-0 router http://127.0.0.1:29000/metrics",
        "chat-server-0 engine/server http://127.0.0.1:8000/metrics?… not read: past MAX_PODS",
    ] {
        assert!(lines.iter().any(|line| line == expected), "no line `{expected}` in\n{stdout}");
    }
    assert!(!stdout.contains("SECRET") && !stdout.contains("chat-own-0"), "{stdout}");
}

#[test]
fn bad_configuration_ends_with_2_and_every_error_on_stderr() {
    let unclosed = format!("{DEPLOYMENT}  - [");
    let user = DEPLOYMENT.replace("http://127.0.0.1:8000", "http://me:SECRET@127.0.0.1:8000");
    let broken = DEPLOYMENT.replace("vllm}", "llama}").replace("role: server", "role: sever");
    let directory = files(&[
        ("d.yaml", DEPLOYMENT),
        ("open.yaml", &unclosed),
        ("user.yaml", &user),
        ("bad.yaml", &broken),
        ("empty.yaml", ""),
    ]);
    fs::create_dir(directory.path().join("folder")).unwrap();
    let cases: &[(Variables<'_>, &[&str])] = &[
        (&[], &["1 error", "DEPLOYMENT_FILE is not set", "demo"]),
        (&[("DEPLOYMENT_FILE", "none.yaml")], &["1 error", "DEPLOYMENT_FILE none.yaml: there is no such file"]),
        (&[("DEPLOYMENT_FILE", "folder")], &["DEPLOYMENT_FILE folder: it is a directory"]),
        (&[("DEPLOYMENT_FILE", "/dev/null")], &["DEPLOYMENT_FILE /dev/null: it is not a regular file"]),
        (&[("DEPLOYMENT_FILE", "empty.yaml")], &["DEPLOYMENT_FILE empty.yaml: (file): is empty"]),
        (&[("DEPLOYMENT_FILE", "open.yaml")], &["DEPLOYMENT_FILE open.yaml: the file is not valid YAML", "at line"]),
        (
            &[("DEPLOYMENT_FILE", "user.yaml")],
            &["pods[0].url: `http://…@127.0.0.1:8000/metrics?…` carries user information"],
        ),
        (
            &[("DEPLOYMENT_FILE", "bad.yaml"), ("WINDOW", "1x"), ("MAX_PODS", "0"), ("WEB_CONFIG_FILE", "w")],
            &[
                "5 errors",
                "WINDOW: `1x` is not accepted; accepted: one whole number",
                "MAX_PODS: `0` is not accepted",
                "WEB_CONFIG_FILE: `w` is not accepted; accepted: nothing, for this version does not support it",
                "spec.engine.name: `llama` is not known; accepted: vLLM, vLLM-Ascend, SGLang",
                "pods[0].role: `sever` is not known; accepted: the name of a role in spec.roles: server, own",
            ],
        ),
    ];
    for (environment, expected) in cases {
        for arguments in [&["check"][..], &[], &["serve"], &["snapshot"]] {
            let (code, stdout, stderr) = outcome(&directory, environment, arguments);
            assert_eq!((code, stdout.as_str()), (2, ""), "{environment:?} {arguments:?}: {stderr}");
            for part in *expected {
                assert!(stderr.contains(part), "{environment:?} {arguments:?}: no `{part}` in\n{stderr}");
            }
            assert!(!stderr.contains("SECRET"), "{stderr}");
        }
    }
}

#[test]
fn the_demo_needs_no_file_but_refuses_wrong_values() {
    let (code, _, stderr) = outcome(&files(&[]), &[("SCRAPE_INTERVAL", "5m")], &["demo"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("COUNTER_MAX_AGE from 300001ms on") && !stderr.contains("DEPLOYMENT_FILE"), "{stderr}");
}

#[test]
fn bad_usage_ends_with_2() {
    for arguments in [&["run"][..], &["--listen"], &["snapshot", "--wait", "5"], &["snapshot", "--format", "xml"]] {
        let (code, stdout, stderr) = outcome(&files(&[]), &[], arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(stderr.contains("--help"), "{stderr}");
    }
}

#[test]
fn files_for_https_are_checked_with_everything_else() {
    let directory = files(&[("d.yaml", DEPLOYMENT), ("empty.pem", "")]);
    let tls = [
        ("SCRAPE_CA_FILE", "no-such.pem"),
        ("SCRAPE_CLIENT_CERT_FILE", "empty.pem"),
        ("SCRAPE_CLIENT_KEY_FILE", "empty.pem"),
    ];
    for (others, errors) in
        [(&[("DEPLOYMENT_FILE", "d.yaml")][..], 2), (&[("WINDOW", "x"), ("DEPLOYMENT_FILE", "none")], 4)]
    {
        let environment = [&tls[..], others].concat();
        let (code, stdout, stderr) = outcome(&directory, &environment, &["check"]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(stderr.contains(&format!("{errors} errors")), "{stderr}");
        assert!(stderr.contains("SCRAPE_CA_FILE no-such.pem: "), "{stderr}");
        assert!(stderr.contains("SCRAPE_CLIENT_CERT_FILE and SCRAPE_CLIENT_KEY_FILE empty.pem: "), "{stderr}");
    }
}

#[test]
fn values_that_are_not_utf8_are_errors() {
    let directory = files(&[("d.yaml", DEPLOYMENT)]);
    let environment = [("DEPLOYMENT_FILE", OsStr::new("d.yaml")), ("WINDOW", OsStr::from_bytes(b"\xFF"))];
    let output = run(directory.path(), &environment, &["check"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("WINDOW: the value is not valid UTF-8"), "{stderr}");
}

#[test]
fn check_survives_a_reader_that_leaves() {
    let directory = files(&[("d.yaml", DEPLOYMENT)]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let file: PathBuf = directory.path().join("d.yaml");
    let output = command.env_clear().env("DEPLOYMENT_FILE", file).arg("check").stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
