//! The landing page in a real browser: headless Chromium opens it from the real binary's `demo`, and
//! what it shows is compared with the JSON object of the same round.

// The lints allow these in test functions only, and their helpers are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

const CHROMIUM: &str = "/usr/bin/chromium";

/// A missing entry with one of these codes does not make the round partial.
const HARMLESS: [&str; 3] = ["not-exported-yet", "unsupported-source", "idle"];

/// What one run of the browser may take on a loaded machine.
const BROWSER: Duration = Duration::from_secs(90);

/// A running `demo`.
struct Demo {
    url: String,
    json: String,
    _process: Child,
}

impl Demo {
    /// Starts it and waits until two rounds have given windows.
    async fn start(scenario: &str) -> Demo {
        let mut process = Command::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"))
            .args(["demo", "--scenario", scenario])
            .env_clear()
            .env("LISTEN_ADDRESS", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = loop {
            let line = timeout(Duration::from_secs(30), lines.next_line()).await.unwrap().unwrap().unwrap();
            if let Some(url) = line.trim_start().strip_prefix("the exporter") {
                break url.trim().to_owned();
            }
        };
        let json = format!("{url}apis/worker.gpustack.ai/v1/namespaces/demo/modeldeployments/chat/metrics");
        let demo = Demo { url, json, _process: process };
        let deadline = Instant::now() + Duration::from_secs(60);
        while demo.object().await.is_none_or(|object| object["cacheHits"].is_null()) {
            assert!(Instant::now() < deadline, "no values after a minute");
            sleep(Duration::from_millis(200)).await;
        }
        demo
    }

    /// The newest round's object, if there is one.
    async fn object(&self) -> Option<Value> {
        let answer = client().get(&self.json).send().await.unwrap();
        if answer.status() != 200 {
            return None;
        }
        Some(serde_json::from_str(&answer.text().await.unwrap()).unwrap())
    }

    /// The page as the browser has it, and the object of the same round.
    async fn shown(&self) -> (String, Value) {
        for _ in 0..20 {
            let (page, log) = browse(&["--dump-dom", &self.url]).await;
            assert!(!log.contains("CONSOLE"), "the browser complains: {log}");
            let object = self.object().await.unwrap();
            if page.contains(&format!("<time datetime=\"{}\">", object["timestamp"].as_str().unwrap())) {
                return (page, object);
            }
        }
        panic!("the page was never of the JSON's round");
    }
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().unwrap()
}

/// Runs the browser with a profile of its own; what it wrote to stdout and what it logged.
async fn browse(arguments: &[&str]) -> (String, String) {
    assert!(
        Path::new(CHROMIUM).exists(),
        "{CHROMIUM} is needed for this test: apt-get install --no-install-recommends chromium"
    );
    let profile = tempfile::tempdir().unwrap();
    let run = Command::new(CHROMIUM)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--no-proxy-server", "--hide-scrollbars", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", profile.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(BROWSER, run).await.expect("the browser ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (out, log) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{log}");
    (out, log)
}

/// A text as the page has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry[key].as_str().unwrap_or_else(|| panic!("{key} in {entry}"))
}

fn list<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object[name].as_array().map_or(&[], Vec::as_slice)
}

/// The section of a scope as the JSON has it: `engine/<role>` or `router`.
fn section<'a>(page: &'a str, scope: &str) -> &'a str {
    let heading = match scope.strip_prefix("engine/") {
        Some(role) => format!("<h2>Role {role}<span>"),
        None => "<h2>Router<span>".to_owned(),
    };
    page.split("<section").find(|section| section.contains(&heading)).unwrap_or_else(|| panic!("{scope}: {page}"))
}

/// A Pod's row, wherever it is.
fn row<'a>(page: &'a str, pod: &str) -> &'a str {
    let heading = format!("<th scope=\"row\">{pod}</th>");
    page.split("<tr>").find(|row| row.contains(&heading)).unwrap_or_else(|| panic!("{pod}: {page}"))
}

/// Everything that the object has is on the page.
fn compare(page: &str, object: &Value) {
    for gauge in list(object, "processing").iter().chain(list(object, "queueing")) {
        let from = format!(" from {}\"", text(gauge, "source"));
        let cells = section(page, text(gauge, "scope")).split(" title=\"").filter_map(|cell| {
            let (title, _) = cell.split_once('>')?;
            title.strip_suffix(&from)?.parse::<f64>().ok()
        });
        let values: Vec<f64> = cells.collect();
        assert_eq!(values.len() as u64, gauge["podCount"].as_u64().unwrap(), "{gauge}: {page}");
        assert_eq!(values.iter().sum::<f64>(), gauge["value"].as_f64().unwrap(), "{gauge}: {page}");
    }
    let windowed = ["latency", "traffic", "transfer"].map(|name| list(object, name)).concat();
    assert!(!windowed.is_empty() && !list(object, "cacheHits").is_empty());
    for entry in windowed.iter().chain(list(object, "cacheHits")) {
        let samples = if entry["queries"].is_null() { &entry["samples"] } else { &entry["queries"] };
        let rest = format!(" from {}, {samples} samples in {} s\"", text(entry, "source"), entry["windowSeconds"]);
        let row = row(page, text(entry, "pod"));
        assert!(row.contains(&rest), "{rest} in {row}");
        if let Some(scope) = text(entry, "scope").strip_prefix("engine/") {
            assert!(section(page, &format!("engine/{scope}")).contains(row), "{entry}");
        }
        // The JSON's transfers are in units of their own.
        let same_unit = ["milliseconds", "GB/second", "MB"].iter().all(|unit| entry["unit"] != **unit);
        let value = if entry["rate"].is_null() { &entry["value"] } else { &entry["rate"] };
        let exact = format!("title=\"{}", value.as_f64().unwrap());
        assert!(!same_unit || row.contains(&exact), "{exact} in {row}");
    }
    let groups: Vec<&str> = page.split("<div class=\"group\">").skip(1).collect();
    assert_eq!(page.matches("<li class=").count(), list(object, "missing").len());
    for entry in list(object, "missing") {
        let pod = match text(entry, "pod") {
            "" => "The deployment",
            pod => pod,
        };
        let heading = format!("<h3>{}<span>", escaped(pod));
        let group =
            groups.iter().find(|group| group.starts_with(&heading)).unwrap_or_else(|| panic!("{entry}: {page}"));
        let source = format!("<code>{}</code>", escaped(text(entry, "source")));
        let item = group.split("<li ").find(|item| item.contains(&source) && item.contains(text(entry, "code")));
        let item = item.unwrap_or_else(|| panic!("{entry}: {group}"));
        assert!(item.contains(&format!("<p>{}</p>", escaped(text(entry, "reason")))), "{entry}: {item}");
        let class = if HARMLESS.contains(&text(entry, "code")) { "class=\"keeps\"" } else { "class=\"sets\"" };
        assert!(item.starts_with(class), "{entry}: {item}");
    }
    let word = if object["partial"] == true { "Partial" } else { "Up" };
    assert!(page.contains(&format!("<strong>{word}</strong>")), "{page}");
}

async fn shows_all_of(scenario: &str, pods: &[(&str, &str)]) {
    let demo = Demo::start(scenario).await;
    let (page, object) = demo.shown().await;
    compare(&page, &object);
    for (scope, pod) in pods {
        assert!(section(&page, scope).contains(&format!("<th scope=\"row\">{pod}</th>")), "{pod}: {page}");
    }
    assert!(page.contains("demo/chat") && page.contains(env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn a_pair_of_engines_is_shown() {
    let prefill = [("engine/prefill", "chat-prefill-0"), ("engine/prefill", "chat-prefill-1")];
    let decode = [("engine/decode", "chat-decode-0"), ("engine/decode", "chat-decode-1"), ("router", "chat-router-0")];
    shows_all_of("vllm-pair", &[&prefill[..], &decode].concat()).await;
}

#[tokio::test]
async fn kv_transfers_are_shown() {
    shows_all_of("sglang-pair", &[("engine/prefill", "chat-prefill-0"), ("router", "chat-router-0")]).await;
}

#[tokio::test]
async fn servers_are_shown() {
    shows_all_of("vllm-servers", &[("engine/server", "chat-server-0"), ("router", "chat-router-0")]).await;
}

#[tokio::test]
async fn the_browser_may_run_no_script() {
    let demo = Demo::start("vllm-pair").await;
    let answer = client().get(&demo.url).send().await.unwrap();
    let policy = answer.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("script-src"), "{policy}");
    // That a complaint of the browser would be seen at all.
    let (_, log) = browse(&["--dump-dom", "data:text/html,<script>console.error('seen')</script>"]).await;
    assert!(log.contains("CONSOLE") && log.contains("seen"), "{log}");
}

/// Width, height and first pixel of a PNG with 8 bits a channel.
fn picture(path: &Path) -> (u32, u32, [u8; 3]) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let (width, height) = (number(16), number(20));
    let mut data = Vec::new();
    let mut at = 8;
    while at < bytes.len() {
        let length = number(at) as usize;
        if &bytes[at + 4..at + 8] == b"IDAT" {
            data.extend_from_slice(&bytes[at + 8..at + 8 + length]);
        }
        at += length + 12;
    }
    // Whatever the first row's filter, its first pixel is stored as it is: all that it refers to is 0.
    let mut first = [0; 4];
    flate2::read::ZlibDecoder::new(&data[..]).read_exact(&mut first).unwrap();
    (width, height, [first[1], first[2], first[3]])
}

#[tokio::test]
async fn it_is_readable_on_a_phone_and_in_the_dark() {
    let demo = Demo::start("sglang-pair").await;
    let directory = tempfile::tempdir().unwrap();
    for width in [390, 1280] {
        let mut grounds = Vec::new();
        for scheme in [&[][..], &["--force-dark-mode"]] {
            let file = directory.path().join("page.png");
            let (size, shot) = (format!("--window-size={width},900"), format!("--screenshot={}", file.display()));
            browse(&[&[&*size, &*shot, &*demo.url], scheme].concat()).await;
            let (shown, height, pixel) = picture(&file);
            assert_eq!((shown, height), (width, 900));
            grounds.push(pixel);
        }
        assert!(grounds[0].iter().all(|channel| *channel > 200), "{grounds:?}");
        assert!(grounds[1].iter().all(|channel| *channel < 50), "{grounds:?}");
    }
}

#[tokio::test]
async fn nothing_is_wider_than_a_phone() {
    let demo = Demo::start("sglang-pair").await;
    let page = client().get(&demo.url).send().await.unwrap().text().await.unwrap();
    // A copy without the policy, so that a script of this test's can measure it.
    let measure = "<script>addEventListener('load', () => { const page = document.documentElement; const tables =\
        [...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth);\
        document.title = [innerWidth, page.scrollWidth, Math.max(...tables)].join(' ') })</script></body>";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    fs::write(&file, page.replace("</body>", measure)).unwrap();
    let (dom, _) = browse(&["--window-size=390,900", "--dump-dom", &format!("file://{}", file.display())]).await;
    let title = dom.split_once("<title>").unwrap().1.split_once("</title>").unwrap().0;
    let numbers: Vec<u32> = title.split(' ').map(|number| number.parse().unwrap()).collect();
    assert!(matches!(numbers[..], [window, page, 0] if page <= window), "{title}");
}
