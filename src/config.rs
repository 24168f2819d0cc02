//! The environment, read into one validated value.
//!
//! Every wrong value is reported at once, each with its variable, the value and what is accepted.
//! It opens no file and no socket. [`VARIABLES`] is the one list of the variables: reading,
//! `--help`, `check` and the README's table go by it.

use crate::text::{short, table};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// One variable of the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The value it has when it is unset or empty.
    pub default: Option<&'static str>,
    /// What it means, for people.
    pub meaning: &'static str,
    /// False for a variable that a later version reads: to set it is an error, never ignored.
    pub supported: bool,
}

const fn variable(name: &'static str, default: Option<&'static str>, meaning: &'static str) -> Variable {
    Variable { name, default, meaning, supported: true }
}

const fn later(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, default: None, meaning, supported: false }
}

/// Every variable, in the order of `--help`, `check` and the README (contract, section 2).
pub const VARIABLES: &[Variable] = &[
    variable("DEPLOYMENT_FILE", None, "static discovery from this file"),
    later("MODEL_DEPLOYMENT", "Kubernetes discovery of this ModelDeployment; not supported in this version"),
    later("NAMESPACE", "the ModelDeployment's namespace; not supported in this version"),
    variable("LISTEN_ADDRESS", Some("0.0.0.0:9850"), "host:port; port 0 picks one and logs it"),
    variable("SCRAPE_INTERVAL", Some("15s"), "from one round's start to the next"),
    variable("SCRAPE_TIMEOUT", Some("2s"), "one Pod's read: connect, headers and body together"),
    variable("ROUND_TIMEOUT", Some("8s"), "one whole round"),
    variable("SCRAPE_CONCURRENCY", Some("32"), "reads in flight"),
    variable("MAX_PODS", Some("64"), "Pods read in a round"),
    variable("MAX_BODY_BYTES", Some("1048576"), "one Pod's body"),
    variable("WINDOW", Some("1m"), "length of the sampling window; 0s means from one read to the next"),
    variable("COUNTER_MAX_AGE", Some("5m"), "an older read is no baseline"),
    variable("SCRAPE_CA_FILE", None, "certificates (PEM) to trust instead of the system's, for Pods that serve HTTPS"),
    variable("SCRAPE_CLIENT_CERT_FILE", None, "client certificate (PEM) for Pods that ask for one; needs the key"),
    variable("SCRAPE_CLIENT_KEY_FILE", None, "the client certificate's key (PEM)"),
    later("WEB_CONFIG_FILE", "TLS and basic auth of the exporter's own listener; not supported in this version"),
    variable("AUTHORIZATION", Some("none"), "none; kubernetes is not supported in this version"),
    variable("LOG_FORMAT", Some("text"), "text or json, on stderr"),
    variable("RUST_LOG", Some("info"), "level of the log: error, warn, info, debug, trace, off, or directives"),
];

/// The longest time that is accepted: ten years, so that sums of times never overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Reads in flight and Pods that are accepted: far above what one process can serve.
const COUNTS: RangeInclusive<u64> = 1..=1_000_000;

/// Body sizes that are accepted, in bytes, up to 1 TiB.
const BODY_BYTES: RangeInclusive<u64> = 1..=1 << 40;

/// Where the deployment is learned from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `DEPLOYMENT_FILE`.
    File(PathBuf),
    /// None: the demo brings its own deployment.
    Simulated,
}

/// The limits and times of reading Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrapeLimits {
    /// `SCRAPE_INTERVAL`: from one round's start to the next.
    pub interval: Duration,
    /// `SCRAPE_TIMEOUT`: one Pod's read.
    pub timeout: Duration,
    /// `ROUND_TIMEOUT`: one whole round.
    pub round_timeout: Duration,
    /// `SCRAPE_CONCURRENCY`: reads in flight, at least 1.
    pub concurrency: usize,
    /// `MAX_PODS`: Pods read in a round, at least 1.
    pub max_pods: usize,
    /// `MAX_BODY_BYTES`: one Pod's body, at least 1.
    pub max_body_bytes: u64,
}

/// The files of trust and identity for Pods that serve HTTPS; not read here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// `SCRAPE_CA_FILE`: replaces the system's roots.
    pub ca: Option<PathBuf>,
    /// `SCRAPE_CLIENT_CERT_FILE` and `SCRAPE_CLIENT_KEY_FILE`.
    pub client: Option<ClientFiles>,
}

/// A client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// `SCRAPE_CLIENT_CERT_FILE`
    pub certificate: PathBuf,
    /// `SCRAPE_CLIENT_KEY_FILE`
    pub key: PathBuf,
}

/// The times of section 5's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowTimes {
    /// `WINDOW`; zero means from one read to the next.
    pub window: Duration,
    /// `SCRAPE_INTERVAL`, of which half is the tolerance of a baseline's age.
    pub interval: Duration,
    /// `COUNTER_MAX_AGE`: an older read is no baseline.
    pub max_age: Duration,
}

/// `LOG_FORMAT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Everything the environment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where the deployment is learned from.
    pub source: Source,
    /// `LISTEN_ADDRESS`: host:port; the host is a name, an IPv4 address or an IPv6 address in brackets.
    pub listen: String,
    /// How Pods are read.
    pub scrape: ScrapeLimits,
    /// `SCRAPE_CA_FILE` and the client's files.
    pub tls: TlsFiles,
    /// How windows are chosen.
    pub window: WindowTimes,
    /// `LOG_FORMAT`.
    pub log_format: LogFormat,
    /// `RUST_LOG`: directives that `tracing-subscriber` accepts.
    pub log_filter: String,
}

/// One thing that is wrong with the environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A value that is not accepted.
    #[error("{variable}: `{}` is not accepted; accepted: {accepted}", short(value))]
    Value {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is accepted.
        accepted: String,
    },
    /// A value that is not UTF-8.
    #[error("{variable}: the value is not valid UTF-8; accepted: text in UTF-8")]
    NotUtf8 {
        /// The variable.
        variable: &'static str,
    },
    /// Values, each accepted for itself, that do not go together.
    #[error("{0}")]
    Together(String),
    /// The variables could not be read at all.
    #[error("the environment cannot be read: {0}")]
    Unreadable(String),
}

/// Everything that is wrong with the environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct Error(pub Vec<Problem>);

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The variables of [`VARIABLES`] as they are set, not yet validated.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    values: BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl Environment {
    /// The process' environment.
    pub fn of_process() -> Environment {
        Environment::read(std::env::vars_os())
    }

    /// These variables; those that are not in [`VARIABLES`] are not looked at. An empty one is unset.
    pub fn read(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Environment {
        let mut problems = Vec::new();
        let mut known: Vec<(String, String)> = Vec::new();
        for (name, value) in variables {
            let Some(variable) = VARIABLES.iter().find(|variable| name.to_str() == Some(variable.name)) else {
                continue;
            };
            match value.into_string() {
                Ok(value) if value.is_empty() => {}
                Ok(value) => known.push((variable.name.to_owned(), value)),
                Err(_) => problems.push(Problem::NotUtf8 { variable: variable.name }),
            }
        }
        // envy spells the names of fields, so its keys are in lower case.
        let values = envy::from_iter(known).unwrap_or_else(|error| {
            problems.push(Problem::Unreadable(error.to_string()));
            BTreeMap::new()
        });
        Environment { values, problems }
    }

    /// The value that a variable is set to; none when it is unset, empty or not UTF-8.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.values.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// The environment with these values for variables that it does not give.
    pub fn with_defaults(mut self, defaults: &[(&str, &str)]) -> Environment {
        for (name, value) in defaults {
            self.values.entry(name.to_ascii_lowercase()).or_insert_with(|| (*value).to_owned());
        }
        self
    }

    /// Every variable with its effective value, and whether the environment gives it.
    pub fn effective(&self) -> impl Iterator<Item = (&'static Variable, Option<&str>, bool)> {
        VARIABLES.iter().map(|variable| {
            let given = self.given(variable.name);
            (variable, given.or(variable.default), given.is_some())
        })
    }
}

impl Config {
    /// Validates the environment, the source of the deployment included.
    ///
    /// # Errors
    /// Every wrong value and every pair of values that do not go together.
    pub fn read(environment: &Environment) -> Result<Config, Error> {
        Config::validate(environment, source)
    }

    /// Validates the environment for a command that brings its own deployment.
    ///
    /// # Errors
    /// As [`Config::read`], without the rules about `DEPLOYMENT_FILE` and `MODEL_DEPLOYMENT`.
    pub fn read_without_source(environment: &Environment) -> Result<Config, Error> {
        Config::validate(environment, |_| Some(Source::Simulated))
    }

    fn validate(
        environment: &Environment,
        source: impl FnOnce(&mut Validator<'_>) -> Option<Source>,
    ) -> Result<Config, Error> {
        let mut read = Validator { environment, problems: environment.problems.clone() };
        let source = source(&mut read);
        read.unsupported("WEB_CONFIG_FILE", "leave it unset");
        let listen = read.value("LISTEN_ADDRESS", address);
        let interval = read.value("SCRAPE_INTERVAL", positive_duration);
        let timeout = read.value("SCRAPE_TIMEOUT", positive_duration);
        let round_timeout = read.value("ROUND_TIMEOUT", positive_duration);
        let concurrency = read.value("SCRAPE_CONCURRENCY", |text| whole_number(text, COUNTS));
        let max_pods = read.value("MAX_PODS", |text| whole_number(text, COUNTS));
        let max_body_bytes = read.value("MAX_BODY_BYTES", |text| whole_number(text, BODY_BYTES));
        let window = read.value("WINDOW", duration);
        let max_age = read.value("COUNTER_MAX_AGE", positive_duration);
        let tls = tls_files(&mut read);
        let authorization = read.value("AUTHORIZATION", authorization);
        let log_format = read.value("LOG_FORMAT", log_format);
        let log_filter = read.value("RUST_LOG", log_filter);

        if let (Some(window), Some(max_age)) = (window, max_age) {
            read.together(window_fits(window, max_age));
        }
        if let (Some(interval), Some(max_age)) = (interval, max_age) {
            read.together(interval_fits(interval, max_age));
        }
        if let (Some(timeout), Some(round), Some(concurrency), Some(pods)) =
            (timeout, round_timeout, concurrency, max_pods)
        {
            read.together(round_fits(timeout, round, concurrency, pods));
        }
        if !read.problems.is_empty() {
            return Err(Error(read.problems));
        }
        let config = || {
            authorization?;
            let interval = interval?;
            Some(Config {
                source: source?,
                listen: listen?,
                scrape: ScrapeLimits {
                    interval,
                    timeout: timeout?,
                    round_timeout: round_timeout?,
                    concurrency: usize::try_from(concurrency?).ok()?,
                    max_pods: usize::try_from(max_pods?).ok()?,
                    max_body_bytes: max_body_bytes?,
                },
                tls: tls?,
                window: WindowTimes { window: window?, interval, max_age: max_age? },
                log_format: log_format?,
                log_filter: log_filter?,
            })
        };
        // Every value that is none has left its problem.
        config().ok_or_else(|| Error(vec![Problem::Unreadable("a value is missing".to_owned())]))
    }
}

/// Takes values one by one and keeps what is wrong with them.
struct Validator<'a> {
    environment: &'a Environment,
    problems: Vec<Problem>,
}

impl Validator<'_> {
    /// A variable with a default; the parser's error says what is accepted.
    fn value<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        if self.environment.given(name).is_none() && self.is_set(name) {
            return None;
        }
        let default = VARIABLES.iter().find(|variable| variable.name == name).and_then(|variable| variable.default);
        let value = self.environment.given(name).or(default).unwrap_or_default();
        match parse(value) {
            Ok(parsed) => Some(parsed),
            Err(accepted) => {
                self.problems.push(Problem::Value { variable: name, value: value.to_owned(), accepted });
                None
            }
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.environment.given(name).map(PathBuf::from)
    }

    /// A variable that only a later version reads must not be set.
    fn unsupported(&mut self, name: &'static str, instead: &str) {
        if let Some(value) = self.environment.given(name) {
            let accepted = format!("nothing, for this version does not support it; {instead}");
            self.problems.push(Problem::Value { variable: name, value: value.to_owned(), accepted });
        }
    }

    fn together(&mut self, result: Result<(), String>) {
        if let Err(message) = result {
            self.problems.push(Problem::Together(message));
        }
    }

    /// Whether a variable is set to something, be it not UTF-8.
    fn is_set(&self, name: &str) -> bool {
        let not_utf8 = |problem: &Problem| matches!(problem, Problem::NotUtf8 { variable } if *variable == name);
        self.environment.given(name).is_some() || self.problems.iter().any(not_utf8)
    }
}

fn source(read: &mut Validator<'_>) -> Option<Source> {
    let (file, object) = (read.is_set("DEPLOYMENT_FILE"), read.is_set("MODEL_DEPLOYMENT"));
    if file && object {
        read.problems.push(Problem::Together(
            "DEPLOYMENT_FILE and MODEL_DEPLOYMENT are both set; accepted: exactly one of them".to_owned(),
        ));
    }
    // Kubernetes discovery, which needs both, comes with a later version.
    let instead = "describe the deployment in DEPLOYMENT_FILE and leave MODEL_DEPLOYMENT and NAMESPACE unset";
    read.unsupported("MODEL_DEPLOYMENT", instead);
    read.unsupported("NAMESPACE", instead);
    if !file && !object {
        read.problems.push(Problem::Together(
            "DEPLOYMENT_FILE is not set; accepted: the path of a deployment file \
             (`demo` shows the exporter without one)"
                .to_owned(),
        ));
    }
    read.path("DEPLOYMENT_FILE").map(Source::File)
}

fn tls_files(read: &mut Validator<'_>) -> Option<TlsFiles> {
    const CERTIFICATE: &str = "SCRAPE_CLIENT_CERT_FILE";
    const KEY: &str = "SCRAPE_CLIENT_KEY_FILE";
    for (one, other) in [(CERTIFICATE, KEY), (KEY, CERTIFICATE)] {
        if read.is_set(one) && !read.is_set(other) {
            let message = format!("{one} is set and {other} is not; accepted: both of them or neither");
            read.problems.push(Problem::Together(message));
        }
    }
    let client = match (read.path(CERTIFICATE), read.path(KEY)) {
        (Some(certificate), Some(key)) => Some(ClientFiles { certificate, key }),
        _ => None,
    };
    Some(TlsFiles { ca: read.path("SCRAPE_CA_FILE"), client })
}

/// A duration: one whole number and one of `ms`, `s`, `m`, `h` (contract, section 2).
///
/// # Errors
/// What is accepted.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| {
        let longest = show_duration(LONGEST);
        format!("one whole number and one of ms, s, m, h, such as 15s, from 0s to {longest}")
    })
}

/// A duration that is not zero.
///
/// # Errors
/// What is accepted.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).filter(|duration| !duration.is_zero()).ok_or_else(|| {
        let longest = show_duration(LONGEST);
        format!("one whole number and one of ms, s, m, h, such as 15s, from 1ms to {longest}")
    })
}

fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        _ => return None,
    };
    let duration = Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(milliseconds)?);
    (duration <= LONGEST).then_some(duration)
}

/// A duration of whole milliseconds as [`duration`] reads it, in its largest whole unit.
pub fn show_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    match milliseconds {
        0 => "0s".to_owned(),
        n if n % 3_600_000 == 0 => format!("{}h", n / 3_600_000),
        n if n % 60_000 == 0 => format!("{}m", n / 60_000),
        n if n % 1000 == 0 => format!("{}s", n / 1000),
        n => format!("{n}ms"),
    }
}

fn whole_number(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { text.parse().ok() } else { None };
    let accepted = || format!("a whole number from {} to {}", range.start(), range.end());
    number.filter(|number| range.contains(number)).ok_or_else(accepted)
}

fn one_of<T: Copy>(text: &str, accepted: &[(&str, T)]) -> Result<T, String> {
    let names = || accepted.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    accepted.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(names)
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    one_of(text, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
}

fn authorization(text: &str) -> Result<(), String> {
    if text == "kubernetes" {
        return Err("none, for this version does not support kubernetes".to_owned());
    }
    one_of(text, &[("none", ())])
}

fn log_filter(text: &str) -> Result<String, String> {
    let accepted = "error, warn, info, debug, trace, off, or directives such as modeldeployment_exporter=debug,info";
    EnvFilter::builder().parse(text).map(|_| text.to_owned()).map_err(|_| accepted.to_owned())
}

/// `host:port`, where the host is a name, an IPv4 address or an IPv6 address in brackets.
fn address(text: &str) -> Result<String, String> {
    let accepted = "host:port with a port from 0 to 65535, such as 0.0.0.0:9850, localhost:9850 or [::]:9850";
    let fail = || accepted.to_owned();
    if text.parse::<SocketAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(fail)?;
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || port.parse::<u16>().is_err() {
        return Err(fail());
    }
    if host.is_empty() {
        return Err(format!("{accepted}; 0.0.0.0:{port} listens on every address"));
    }
    let label = |label: &str| {
        let byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(byte)
    };
    // A host of digits and dots can only be meant as an IPv4 address.
    let numeric = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let valid =
        if numeric { host.parse::<Ipv4Addr>().is_ok() } else { host.len() <= 253 && host.split('.').all(label) };
    if valid { Ok(text.to_owned()) } else { Err(fail()) }
}

fn window_fits(window: Duration, max_age: Duration) -> Result<(), String> {
    if window <= max_age {
        return Ok(());
    }
    let (window, max_age) = (show_duration(window), show_duration(max_age));
    Err(format!(
        "WINDOW {window} is longer than COUNTER_MAX_AGE {max_age}, so no window could become that long; \
         accepted: WINDOW up to {max_age}, or COUNTER_MAX_AGE from {window} on"
    ))
}

fn interval_fits(interval: Duration, max_age: Duration) -> Result<(), String> {
    if interval < max_age {
        return Ok(());
    }
    let millisecond = Duration::from_millis(1);
    let below = max_age.saturating_sub(millisecond);
    let below =
        if below.is_zero() { String::new() } else { format!("SCRAPE_INTERVAL up to {}, or ", show_duration(below)) };
    let above = show_duration(interval + millisecond);
    let (interval, max_age) = (show_duration(interval), show_duration(max_age));
    Err(format!(
        "SCRAPE_INTERVAL {interval} is not shorter than COUNTER_MAX_AGE {max_age}, so no read would have a baseline; \
         accepted: {below}COUNTER_MAX_AGE from {above} on"
    ))
}

/// Two turns of reads fit in a round, so Pods queued behind hanging ones are still read.
fn round_fits(timeout: Duration, round: Duration, concurrency: u64, pods: u64) -> Result<(), String> {
    let (timeout_ms, round_ms) = (timeout.as_millis(), round.as_millis());
    let turns = u128::from(pods.div_ceil(concurrency));
    if timeout_ms * turns * 2 <= round_ms {
        return Ok(());
    }
    let milliseconds = |n: u128| Duration::from_millis(u64::try_from(n).unwrap_or(u64::MAX));
    let mut choices = Vec::new();
    let needed = milliseconds(timeout_ms * turns * 2);
    if needed <= LONGEST {
        choices.push(format!("ROUND_TIMEOUT from {} on", show_duration(needed)));
    }
    let longest = milliseconds(round_ms / 2 / turns);
    if !longest.is_zero() {
        choices.push(format!("SCRAPE_TIMEOUT up to {}", show_duration(longest)));
    }
    // How many turns of this timeout fit in half a round.
    let fitting = round_ms / 2 / timeout_ms;
    if fitting > 0 {
        choices.push(format!("SCRAPE_CONCURRENCY from {} on", u128::from(pods).div_ceil(fitting)));
        choices.push(format!("MAX_PODS up to {}", u128::from(concurrency) * fitting));
    }
    Err(format!(
        "SCRAPE_TIMEOUT {} times {turns} ({pods} MAX_PODS, {concurrency} SCRAPE_CONCURRENCY at once) is more than half \
         of ROUND_TIMEOUT {}, so Pods queued behind hanging ones would not be read; accepted: {}",
        show_duration(timeout),
        show_duration(round),
        choices.join(", or ")
    ))
}

/// The variables as an aligned list for `--help`.
#[derive(Debug, Clone, Copy)]
pub struct Help;

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Environment (variable, default, meaning; an empty variable is unset):")?;
        let row =
            |variable: &Variable| [variable.name, variable.default.unwrap_or("-"), variable.meaning].map(str::to_owned);
        f.write_str(&table(&VARIABLES.iter().map(row).collect::<Vec<_>>()))?;
        write!(f, "Durations are one whole number and one of ms, s, m, h; only WINDOW may be zero.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    /// Variables and their values.
    type Variables<'a> = &'a [(&'a str, &'a str)];

    fn environment(variables: Variables<'_>) -> Environment {
        Environment::read(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())))
    }

    /// With a deployment file, and these variables.
    fn read(variables: Variables<'_>) -> Result<Config, Error> {
        Config::read(&environment(&[&[("DEPLOYMENT_FILE", "d.yaml")], variables].concat()))
    }

    fn problems(variables: Variables<'_>) -> Vec<String> {
        read(variables).map_or_else(|error| error.0.iter().map(ToString::to_string).collect(), |_| Vec::new())
    }

    #[test]
    fn defaults() {
        let config = read(&[("SCRAPE_INTERVAL", ""), ("scrape_timeout", "9s"), ("OTHER", "x")]).unwrap();
        let seconds = Duration::from_secs;
        let expected = Config {
            source: Source::File("d.yaml".into()),
            listen: "0.0.0.0:9850".to_owned(),
            scrape: ScrapeLimits {
                interval: seconds(15),
                timeout: seconds(2),
                round_timeout: seconds(8),
                concurrency: 32,
                max_pods: 64,
                max_body_bytes: 1_048_576,
            },
            tls: TlsFiles::default(),
            window: WindowTimes { window: seconds(60), interval: seconds(15), max_age: seconds(300) },
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn values_that_are_accepted() {
        let accepted: &[(&str, &[&str])] = &[
            ("WINDOW", &["0s", "0ms", "0h", "5m", "250ms", "00001s"]),
            ("COUNTER_MAX_AGE", &["1h", "60001ms", "87600h"]),
            ("SCRAPE_INTERVAL", &["1ms", "299s"]),
            ("ROUND_TIMEOUT", &["1h", "87600h"]),
            ("MAX_PODS", &["1", "64"]),
            ("SCRAPE_CONCURRENCY", &["32", "1000000"]),
            ("MAX_BODY_BYTES", &["1", "1099511627776"]),
            ("LISTEN_ADDRESS", &["127.0.0.1:0", "[::1]:9850", "[::]:1", "localhost:65535", "a-b.example.org:80"]),
            ("AUTHORIZATION", &["none"]),
            ("LOG_FORMAT", &["text", "json"]),
            ("RUST_LOG", &["debug", "off", "modeldeployment_exporter=trace,info"]),
            ("SCRAPE_CA_FILE", &["/ca.pem"]),
        ];
        for (variable, values) in accepted {
            for value in *values {
                assert_eq!(problems(&[(variable, value)]), [""; 0], "{variable}={value}");
            }
        }
    }

    #[test]
    fn values_that_are_not_accepted_are_named_with_what_is() {
        let any = "from 0s to 87600h";
        let positive = "from 1ms to 87600h";
        let refused: &[(&str, &[&str], &str)] = &[
            (
                "WINDOW",
                &["0", "s", "1", "1.5s", "-1s", "+1s", "1 s", " 1s", "1s ", "1m30s", "1S", "1d", "1us", "87601h", "x"],
                any,
            ),
            ("WINDOW", &["18446744073709551615s", "18446744073709551615h", "99999999999999999999s", "١s"], any),
            ("SCRAPE_INTERVAL", &["0s", "0ms", "15"], positive),
            ("SCRAPE_TIMEOUT", &["0m", "two"], positive),
            ("ROUND_TIMEOUT", &["0h"], positive),
            ("COUNTER_MAX_AGE", &["0s"], positive),
            (
                "SCRAPE_CONCURRENCY",
                &["0", "-1", "+1", "1.0", "1000001", "99999999999999999999999"],
                "from 1 to 1000000",
            ),
            ("MAX_PODS", &["0", "all"], "from 1 to 1000000"),
            ("MAX_BODY_BYTES", &["0", "1MiB", "1099511627777"], "from 1 to 1099511627776"),
            (
                "LISTEN_ADDRESS",
                &["9850", "localhost", "localhost:", "h:65536", "h:-1", "h:http", "::1:80", "[::1]", "[x]:1", "a b:1"],
                "host:port",
            ),
            ("LISTEN_ADDRESS", &["1.2.3:80", "1.2.3.400:80", "a..b:1", "http://h:1", "h/x:1"], "host:port"),
            ("LISTEN_ADDRESS", &[":9850"], "0.0.0.0:9850 listens on every address"),
            ("AUTHORIZATION", &["basic", "None"], "accepted: none"),
            ("AUTHORIZATION", &["kubernetes"], "this version does not support kubernetes"),
            ("LOG_FORMAT", &["JSON", "logfmt"], "text, json"),
            ("RUST_LOG", &["x=loud", "=="], "error, warn, info"),
            ("WEB_CONFIG_FILE", &["/web.yaml"], "this version does not support it"),
            ("NAMESPACE", &["team"], "this version does not support it"),
        ];
        for (variable, values, accepted) in refused {
            for value in *values {
                let found = problems(&[(variable, value)]);
                let [message] = found.as_slice() else { panic!("{variable}={value}: {found:?}") };
                assert!(message.starts_with(&format!("{variable}: `{value}` is not accepted")), "{message}");
                assert!(message.contains(accepted), "{message}");
            }
        }
    }

    #[test]
    fn limits_that_do_not_go_together_say_which_would_do() {
        let cases: &[(Variables<'_>, &str)] = &[
            (&[("WINDOW", "10m")], "WINDOW up to 5m, or COUNTER_MAX_AGE from 10m on"),
            (&[("SCRAPE_INTERVAL", "5m")], "SCRAPE_INTERVAL up to 299999ms, or COUNTER_MAX_AGE from 300001ms on"),
            (
                &[("SCRAPE_INTERVAL", "1ms"), ("COUNTER_MAX_AGE", "1ms"), ("WINDOW", "0s")],
                "accepted: COUNTER_MAX_AGE from 2ms on",
            ),
            (
                &[("MAX_PODS", "65")],
                "ROUND_TIMEOUT from 12s on, or SCRAPE_TIMEOUT up to 1333ms, or SCRAPE_CONCURRENCY from 33 on, or MAX_PODS up to 64",
            ),
            (
                &[("SCRAPE_TIMEOUT", "2001ms")],
                "ROUND_TIMEOUT from 8004ms on, or SCRAPE_TIMEOUT up to 2s, or SCRAPE_CONCURRENCY from 64 on",
            ),
            (
                &[("SCRAPE_TIMEOUT", "5s"), ("SCRAPE_CONCURRENCY", "64")],
                "accepted: ROUND_TIMEOUT from 10s on, or SCRAPE_TIMEOUT up to 4s",
            ),
            (&[("SCRAPE_TIMEOUT", "87600h"), ("MAX_PODS", "1000000"), ("SCRAPE_CONCURRENCY", "1")], "accepted: "),
        ];
        for (variables, expected) in cases {
            let found = problems(variables);
            let [message] = found.as_slice() else { panic!("{variables:?}: {found:?}") };
            assert!(message.contains(expected), "{variables:?}: {message}");
        }
    }

    #[test]
    fn the_values_that_a_message_offers_do() {
        let tight =
            [("MAX_PODS", "100"), ("SCRAPE_CONCURRENCY", "7"), ("SCRAPE_TIMEOUT", "1700ms"), ("ROUND_TIMEOUT", "9s")];
        let message = problems(&tight).pop().unwrap();
        let offers = message.rsplit("accepted: ").next().unwrap().split(", or ");
        let mut count = 0;
        for offer in offers {
            let words: Vec<&str> = offer.split(' ').collect();
            let value = words.iter().find(|word| word.starts_with(|c: char| c.is_ascii_digit())).unwrap();
            let mut variables: Vec<(&str, &str)> =
                tight.iter().copied().filter(|(name, _)| *name != words[0]).collect();
            variables.push((words[0], value));
            assert_eq!(problems(&variables), [""; 0], "{offer}");
            count += 1;
        }
        assert_eq!(count, 4, "{message}");
    }

    #[test]
    fn every_wrong_value_is_reported_at_once() {
        let found =
            problems(&[("WINDOW", "x"), ("MAX_PODS", "0"), ("LOG_FORMAT", "y"), ("SCRAPE_CLIENT_KEY_FILE", "k")]);
        assert_eq!(found.len(), 4, "{found:?}");
    }

    #[test]
    fn the_source_is_exactly_one() {
        let cases: &[(Variables<'_>, &[&str])] = &[
            (&[], &["DEPLOYMENT_FILE is not set"]),
            (&[("DEPLOYMENT_FILE", "")], &["DEPLOYMENT_FILE is not set"]),
            (&[("MODEL_DEPLOYMENT", "m"), ("NAMESPACE", "n")], &["MODEL_DEPLOYMENT: `m`", "NAMESPACE: `n`"]),
            (&[("MODEL_DEPLOYMENT", "m")], &["MODEL_DEPLOYMENT: `m`"]),
            (&[("NAMESPACE", "n")], &["NAMESPACE: `n`", "DEPLOYMENT_FILE is not set"]),
            (
                &[("DEPLOYMENT_FILE", "d"), ("MODEL_DEPLOYMENT", "m"), ("NAMESPACE", "n")],
                &["exactly one", "MODEL_DEPLOYMENT: `m`", "NAMESPACE: `n`"],
            ),
        ];
        for (variables, expected) in cases {
            let Error(found) = Config::read(&environment(variables)).unwrap_err();
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (message, part) in found.iter().zip(*expected) {
                assert!(message.contains(part), "{message} / {part}");
            }
        }
        let config = Config::read_without_source(&environment(&[])).unwrap();
        assert_eq!(config.source, Source::Simulated);
    }

    #[test]
    fn client_certificate_and_key_come_together() {
        let both = read(&[("SCRAPE_CLIENT_CERT_FILE", "c"), ("SCRAPE_CLIENT_KEY_FILE", "k")]).unwrap();
        assert_eq!(both.tls.client, Some(ClientFiles { certificate: "c".into(), key: "k".into() }));
        assert!(problems(&[("SCRAPE_CLIENT_CERT_FILE", "c")])[0].contains("SCRAPE_CLIENT_KEY_FILE is not"));
        assert!(problems(&[("SCRAPE_CLIENT_KEY_FILE", "k")])[0].contains("SCRAPE_CLIENT_CERT_FILE is not"));
    }

    #[test]
    fn values_that_are_not_utf8_are_errors() {
        let variables = [("DEPLOYMENT_FILE", vec![b'a', 0xFF]), ("WINDOW", vec![0xFE]), ("OTHER", vec![0xFE])];
        let variables = variables.map(|(name, value)| (name.into(), OsString::from_vec(value)));
        let Error(found) = Config::read(&Environment::read(variables)).unwrap_err();
        let expected = ["DEPLOYMENT_FILE", "WINDOW"].map(|variable| Problem::NotUtf8 { variable });
        assert_eq!(found, expected);
    }

    #[test]
    fn long_and_strange_values_stay_on_one_line() {
        let value = format!("a\nb{}", "x".repeat(500));
        let found = problems(&[("LOG_FORMAT", &value)]);
        assert!(found[0].contains("`a\\nbxxx") && found[0].len() < 200, "{found:?}");
    }

    #[test]
    fn durations_are_shown_as_they_are_read() {
        for text in ["0s", "1ms", "1500ms", "59s", "1m", "90s", "1h", "25h", "87600h"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
    }
}
