//! What a whole round of 64 Pods over loopback costs, beside a bare hyper client that reads the same bodies.
//!
//! `cargo bench --bench round`. Both clients are processes of their own and take turns; their CPU
//! time and peak memory are the kernel's (`/proc/<pid>/stat` and `status`). The budget is 2.5 times the bare client's CPU
//! and 32 MiB; it is printed and never decides anything here.
//!
//! `serve-targets COUNT BYTES` serves the targets alone and prints their ports, for `benches/compare`.

mod fleet;

use bytes::Bytes;
use fleet::Fleet;
use futures_util::{StreamExt, stream};
use http::Request;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use procfs::process::Process;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

const TARGETS: usize = 64;
/// `SCRAPE_CONCURRENCY`'s default.
const CONCURRENCY: usize = 32;
/// The sizes of a body, with an interval that leaves room between two rounds and the measured rounds.
const SIZES: [(usize, Duration, u64); 3] = [
    (64 << 10, Duration::from_millis(40), 150),
    (256 << 10, Duration::from_millis(160), 40),
    (1 << 20, Duration::from_millis(600), 12),
];
/// Rounds before the measured ones: a window's worth, so that every field has its value.
const WARM_UP: u64 = 6;
const REPEATS: usize = 3;
/// The product names in the clients' User-Agent.
const EXPORTER: &str = env!("CARGO_PKG_NAME");
const BARE: &str = "bare-hyper";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["read", ports, interval, ..] => {
            let ports: Vec<u16> = ports.split(',').map(str::parse).collect::<Result<_, _>>()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(read_all(&ports, Duration::from_millis(interval.parse()?)))
        }
        ["serve-targets", count, bytes, ..] => serve_targets(count.parse()?, bytes.parse()?),
        // `cargo test --all-targets` runs benches without it.
        _ if !arguments.contains(&"--bench") => Ok(()),
        _ if filtered_out(&arguments) => Ok(()),
        _ => compare(),
    }
}

/// Whether the command line names other benches, as the other benches' harness takes names.
fn filtered_out(arguments: &[&str]) -> bool {
    let mut names = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    names.peek().is_some() && !names.any(|name| "round".contains(name))
}

/// Serves targets until the standard input ends.
fn serve_targets(count: usize, body_bytes: usize) -> Result<(), Box<dyn Error>> {
    let fleet = Fleet::start(count, body_bytes);
    let ports: Vec<String> = fleet.ports.iter().map(u16::to_string).collect();
    println!("{}", ports.join(","));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// CPU time and memory of one client over its measured rounds.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Nanoseconds per byte of body.
    user: f64,
    system: f64,
    /// `VmHWM`, in MiB.
    peak: f64,
}

impl Cost {
    fn cpu(&self) -> f64 {
        self.user + self.system
    }
}

/// A child process that is ended with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compare() -> Result<(), Box<dyn Error>> {
    println!("a round of {TARGETS} Pods over loopback, CPU in ns per byte of body, median of {REPEATS} runs in turn");
    println!("{:>9}  {:<26} {:>6} {:>7} {:>6} {:>10}", "body", "", "user", "system", "both", "peak");
    for (size, interval, rounds) in SIZES {
        let (mut exporter, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            bare.push(measure_bare(size, interval, rounds)?);
            exporter.push(measure_exporter(size, interval, rounds)?);
        }
        let mut ratios: Vec<f64> = exporter.iter().zip(&bare).map(|(ours, theirs)| ours.cpu() / theirs.cpu()).collect();
        for (name, costs) in [(BARE, &mut bare), (EXPORTER, &mut exporter)] {
            costs.sort_by(|a, b| a.cpu().total_cmp(&b.cpu()));
            let median = costs[REPEATS / 2];
            let peak = costs.iter().map(|cost| cost.peak).fold(0.0, f64::max);
            println!(
                "{:>5} KiB  {name:<26} {:>6.2} {:>7.2} {:>6.2} {peak:>6.1} MiB",
                size >> 10,
                median.user,
                median.system,
                median.cpu(),
            );
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "{:>9}  {:<26} {:>21.2} (from {:.2} to {:.2})",
            "",
            "ratio; budget 2.5, aim 1.5",
            ratios[REPEATS / 2],
            ratios[0],
            ratios[REPEATS - 1],
        );
    }
    Ok(())
}

fn measure_bare(size: usize, interval: Duration, rounds: u64) -> Result<Cost, Box<dyn Error>> {
    let fleet = Fleet::start(TARGETS, size);
    let ports: Vec<String> = fleet.ports.iter().map(u16::to_string).collect();
    let client = Command::new(std::env::current_exe()?)
        .args(["read", &ports.join(","), &interval.as_millis().to_string()])
        .spawn()?;
    let client = Running(client);
    measure(&fleet, BARE, &client, interval, rounds)
}

fn measure_exporter(size: usize, interval: Duration, rounds: u64) -> Result<Cost, Box<dyn Error>> {
    let fleet = Fleet::start(TARGETS, size);
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("deployment.yaml");
    std::fs::write(&file, deployment(&fleet.ports))?;
    let (exporter, address) = start_exporter(&file, interval)?;
    let mut cost = measure(&fleet, EXPORTER, &exporter, interval, rounds)?;
    // Its peak includes what scrapes of both formats take.
    for accept in ["text/plain", "application/openmetrics-text"] {
        let body = get(&address, accept)?;
        let readable = body.lines().filter(|line| line.starts_with("modeldeployment_pod_up{") && line.ends_with(" 1"));
        if readable.count() != TARGETS {
            return Err("the exporter did not read every Pod".into());
        }
    }
    cost.peak = peak(&exporter)?;
    Ok(cost)
}

/// A deployment whose Pods are these targets, with everything attached that makes fields readable.
fn deployment(ports: &[u16]) -> String {
    let pods: Vec<_> = ports
        .iter()
        .enumerate()
        .map(|(index, port)| {
            serde_json::json!({
                "name": format!("chat-server-{index}"),
                "role": "server",
                "url": format!("http://127.0.0.1:{port}/metrics"),
                "args": ["vllm", "serve", "model", "--kv-transfer-config", "{}"],
            })
        })
        .collect();
    let document = serde_json::json!({
        "metadata": {"name": "chat", "namespace": "team"},
        "spec": {
            "engine": {"name": "vLLM"},
            "kvCache": {"poolRef": {"name": "pool"}},
            "roles": [{"name": "server", "kind": "Server", "replicas": ports.len()}],
        },
        "pods": pods,
    });
    document.to_string()
}

/// Starts the exporter and waits for the address it listens on.
fn start_exporter(file: &Path, interval: Duration) -> Result<(Running, String), Box<dyn Error>> {
    let child = Command::new(env!("CARGO_BIN_EXE_modeldeployment-exporter"))
        .arg("serve")
        .env_clear()
        .env("DEPLOYMENT_FILE", file)
        .env("LISTEN_ADDRESS", "127.0.0.1:0")
        .env("SCRAPE_INTERVAL", format!("{}ms", interval.as_millis()))
        // As many rounds in a window as with the defaults.
        .env("WINDOW", format!("{}ms", interval.as_millis() * 4))
        .env("NO_COLOR", "1")
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut child = Running(child);
    let outputs: [Option<Box<dyn Read + Send>>; 2] =
        [child.0.stdout.take().map(|out| Box::new(out) as _), child.0.stderr.take().map(|out| Box::new(out) as _)];
    let (say, said) = std::sync::mpsc::channel();
    for output in outputs.into_iter().flatten() {
        let say = say.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("listening on http://") {
                    let _ = say.send(address.trim().to_owned());
                }
            }
        });
    }
    let address = said.recv_timeout(Duration::from_secs(10)).map_err(|_| "the exporter did not start")?;
    Ok((child, address))
}

/// What a client costs from the end of its warm-up on.
fn measure(
    fleet: &Fleet,
    agent: &str,
    client: &Running,
    interval: Duration,
    rounds: u64,
) -> Result<Cost, Box<dyn Error>> {
    let deadline = std::time::Instant::now() + interval * 20 * u32::try_from(WARM_UP + rounds)?;
    let after = |round: u64| loop {
        let sent = fleet.sent(agent);
        if sent.reads >= round * TARGETS as u64 {
            return cpu(client).map(|(user, system)| (sent.bytes, user, system));
        }
        if std::time::Instant::now() > deadline {
            return Err("the client does not read as fast as it should".into());
        }
        thread::sleep(Duration::from_millis(1));
    };
    let (bytes_before, user_before, system_before) = after(WARM_UP)?;
    let (bytes, user, system) = after(WARM_UP + rounds)?;
    let per_byte = |ticks: u64| ticks as f64 * 1e9 / procfs::ticks_per_second() as f64 / (bytes - bytes_before) as f64;
    Ok(Cost { user: per_byte(user - user_before), system: per_byte(system - system_before), peak: peak(client)? })
}

fn process(client: &Running) -> Result<Process, Box<dyn Error>> {
    Ok(Process::new(i32::try_from(client.0.id())?)?)
}

/// User and system time so far, in the kernel's ticks.
fn cpu(client: &Running) -> Result<(u64, u64), Box<dyn Error>> {
    let stat = process(client)?.stat()?;
    Ok((stat.utime, stat.stime))
}

fn peak(client: &Running) -> Result<f64, Box<dyn Error>> {
    let kib = process(client)?.status()?.vmhwm.ok_or("the kernel tells no VmHWM")?;
    Ok(kib as f64 / 1024.0)
}

fn get(address: &str, accept: &str) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The bare client: reads every target's body once per interval over kept connections and drops the bytes.
async fn read_all(ports: &[u16], interval: Duration) -> Result<(), Box<dyn Error>> {
    let mut kept: Vec<(u16, Option<SendRequest<Empty<Bytes>>>)> = ports.iter().map(|port| (*port, None)).collect();
    let mut next = Instant::now();
    loop {
        let reads = stream::iter(kept).map(|(port, connection)| read(port, connection));
        let done: Vec<_> = reads.buffered(CONCURRENCY).collect().await;
        kept = done.into_iter().collect::<Result<_, _>>()?;
        next = (next + interval).max(Instant::now());
        sleep_until(next).await;
    }
}

async fn read(
    port: u16,
    connection: Option<SendRequest<Empty<Bytes>>>,
) -> Result<(u16, Option<SendRequest<Empty<Bytes>>>), Box<dyn Error>> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => {
            let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(driver);
            sender
        }
    };
    connection.ready().await?;
    let request = Request::get("/metrics")
        .header(HOST, format!("127.0.0.1:{port}"))
        .header(USER_AGENT, BARE)
        .header(ACCEPT, "text/plain;version=0.0.4")
        .body(Empty::new())?;
    let mut body = connection.send_request(request).await?.into_body();
    while let Some(frame) = body.frame().await {
        std::hint::black_box(frame?);
    }
    Ok((port, Some(connection)))
}
