//! Reading Pods over TLS: whom the exporter trusts, and what it says when it does not.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod support;

use modeldeployment_exporter::clock::SystemClock;
use modeldeployment_exporter::config::{ClientFiles, TlsFiles};
use modeldeployment_exporter::deployment::RoleKind;
use modeldeployment_exporter::scrape::connector::Network;
use modeldeployment_exporter::scrape::tls::Tls;
use modeldeployment_exporter::scrape::{Round, Scraper};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use support::{BODY, Server, Step, deployment, limits, ok};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

/// A certificate authority of a test's own.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate and its key.
struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    Authority { issuer: Issuer::new(params, key), certificate }
}

impl Authority {
    fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { certificate, key }
    }

    /// A certificate for these names and addresses.
    fn identity(&self, names: &[&str]) -> Identity {
        self.sign(CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap())
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        Arc::new(roots)
    }
}

/// Whose client certificates a server wants.
enum Clients<'a> {
    Anyone,
    Asked(&'a Authority),
    Demanded(&'a Authority),
}

fn server_config(
    identity: &Identity,
    clients: &Clients<'_>,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions).unwrap();
    let verifier =
        |authority: &Authority| WebPkiClientVerifier::builder_with_provider(authority.roots(), Arc::clone(&provider));
    let builder = match clients {
        Clients::Anyone => builder.with_no_client_auth(),
        Clients::Asked(by) => builder.with_client_cert_verifier(verifier(by).allow_unauthenticated().build().unwrap()),
        Clients::Demanded(by) => builder.with_client_cert_verifier(verifier(by).build().unwrap()),
    };
    let chain: Vec<CertificateDer<'static>> = vec![identity.certificate.der().clone()];
    builder.with_single_cert(chain, PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap()).unwrap()
}

/// The files of a configuration, in a directory that lives as long as they do.
struct Files {
    directory: TempDir,
    files: TlsFiles,
}

impl Files {
    fn new() -> Files {
        Files { directory: tempfile::tempdir().unwrap(), files: TlsFiles::default() }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn trusting(authority: &Authority) -> Files {
        let mut files = Files::new();
        files.files.ca = Some(files.write("ca.pem", &authority.certificate.pem()));
        files
    }

    fn showing(mut self, identity: &Identity) -> Files {
        self.files.client = Some(ClientFiles {
            certificate: self.write("client.pem", &identity.certificate.pem()),
            key: self.write("client.key", &identity.key.serialize_pem()),
        });
        self
    }

    fn scraper(&self) -> Scraper {
        let network = Network::new(Tls::from_files(&self.files).unwrap());
        Scraper::new(Arc::new(network), Arc::new(SystemClock::start()), limits())
    }
}

fn outcomes(round: &Round) -> Vec<String> {
    let outcome = |result: &Result<_, modeldeployment_exporter::scrape::Unreadable>| match result {
        Ok(_) => "ok".to_owned(),
        Err(unreadable) => format!("{}: {}", unreadable.cause.as_str(), unreadable.reason),
    };
    round.scraped.iter().map(|s| outcome(&s.result)).collect()
}

/// Reads one URL and a healthy neighbour over plain HTTP, in two rounds that must agree.
async fn read(files: &Files, url: &str) -> String {
    let neighbour = Server::http(|_| ok(BODY)).await;
    let deployment = deployment()
        .role("server", RoleKind::Server, 2)
        .pod("a", "server", url)
        .pod("b", "server", &neighbour.url())
        .build();
    let mut scraper = files.scraper();
    let first = outcomes(&scraper.round(&deployment).await);
    let second = outcomes(&scraper.round(&deployment).await);
    assert_eq!(first, second, "the sentences stay equal");
    assert_eq!(first[1], "ok");
    first[0].clone()
}

async fn read_server(files: &Files, config: ServerConfig) -> String {
    let server = Server::https(config, |_| ok(BODY)).await;
    read(files, &server.url()).await
}

const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

#[tokio::test]
async fn a_certificate_of_a_trusted_authority_is_read_and_its_connection_kept() {
    let ca = authority("trusted");
    let files = Files::trusting(&ca);
    for version in BOTH {
        let config = server_config(&ca.identity(&["127.0.0.1"]), &Clients::Anyone, &[version]);
        let server = Server::https(config, |_| ok(BODY)).await;
        assert_eq!(read(&files, &server.url()).await, "ok");
        assert_eq!((server.stats().connections, server.stats().requests), (1, 2));
    }
}

#[tokio::test]
async fn a_certificate_may_be_for_the_host_name() {
    let ca = authority("trusted");
    let config = server_config(&ca.identity(&["localhost"]), &Clients::Anyone, BOTH);
    let server = Server::https(config, |_| ok(BODY)).await;
    let url = format!("https://localhost:{}/metrics", server.port());
    assert_eq!(read(&Files::trusting(&ca), &url).await, "ok");
}

#[tokio::test]
async fn an_unknown_issuer_is_untrusted_with_a_file_and_with_the_systems_roots() {
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let expected = "tls: the Pod's certificate is not signed by a trusted authority; \
                    SCRAPE_CA_FILE names the authorities to trust";
    for files in [Files::trusting(&ours), Files::new()] {
        let config = server_config(&theirs.identity(&["127.0.0.1"]), &Clients::Anyone, BOTH);
        assert_eq!(read_server(&files, config).await, expected);
    }
}

#[tokio::test]
async fn another_name_and_another_time_are_told_apart() {
    let ca = authority("trusted");
    let files = Files::trusting(&ca);
    let named = ca.identity(&["pod.example", "192.0.2.1"]);
    let of_years = |from, until| {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        ca.sign(params)
    };
    let table = [
        (named, "tls: the Pod's certificate is not valid for the host or address in its metrics URL"),
        (of_years(2001, 2002), "tls: the Pod's certificate has expired"),
        (of_years(4001, 4002), "tls: the Pod's certificate is not valid yet"),
    ];
    for (identity, expected) in table {
        assert_eq!(read_server(&files, server_config(&identity, &Clients::Anyone, BOTH)).await, expected);
    }
}

#[tokio::test]
async fn a_demanded_client_certificate_is_named_shown_or_turned_down() {
    let (ca, other) = (authority("trusted"), authority("other"));
    let identity = ca.identity(&["127.0.0.1"]);
    let without = Files::trusting(&ca);
    let with = Files::trusting(&ca).showing(&ca.identity(&["exporter"]));
    let wrong = Files::trusting(&ca).showing(&other.identity(&["exporter"]));
    for version in BOTH {
        let config = || server_config(&identity, &Clients::Demanded(&ca), &[version]);
        assert_eq!(
            read_server(&without, config()).await,
            "tls: the Pod asks for a client certificate; \
             SCRAPE_CLIENT_CERT_FILE and SCRAPE_CLIENT_KEY_FILE name the one to show"
        );
        assert_eq!(read_server(&with, config()).await, "ok");
        assert_eq!(
            read_server(&wrong, config()).await,
            "tls: the Pod does not accept the client certificate of SCRAPE_CLIENT_CERT_FILE"
        );
    }
}

#[tokio::test]
async fn a_server_that_only_asks_for_a_client_certificate_is_read() {
    let ca = authority("trusted");
    let identity = ca.identity(&["127.0.0.1"]);
    for version in BOTH {
        let config = server_config(&identity, &Clients::Asked(&ca), &[version]);
        assert_eq!(read_server(&Files::trusting(&ca), config).await, "ok");
    }
}

#[tokio::test]
async fn a_server_that_leaves_after_it_asked_in_vain_did_so_for_the_certificate() {
    let ca = authority("trusted");
    let identity = ca.identity(&["127.0.0.1"]);
    for step in [Step::Close, Step::Reset] {
        let config = server_config(&identity, &Clients::Asked(&ca), BOTH);
        let server = Server::https(config, move |_| vec![step.clone()]).await;
        let outcome = read(&Files::trusting(&ca), &server.url()).await;
        assert!(outcome.starts_with("tls: the Pod asks for a client certificate"), "{outcome}");
    }
    let config = server_config(&identity, &Clients::Anyone, BOTH);
    let server = Server::https(config, |_| vec![Step::Close]).await;
    let outcome = read(&Files::trusting(&ca), &server.url()).await;
    assert_eq!(outcome, "reset: the Pod closed the connection before it answered");
}

#[tokio::test]
async fn a_stale_kept_tls_connection_is_tried_once_more_on_a_new_one() {
    let ca = authority("trusted");
    for clients in [Clients::Anyone, Clients::Asked(&ca)] {
        let config = server_config(&ca.identity(&["127.0.0.1"]), &clients, BOTH);
        let server = Server::https(config, |request| match (request.connection, request.number) {
            (0, 1) => vec![Step::Close],
            _ => ok(BODY),
        })
        .await;
        assert_eq!(read(&Files::trusting(&ca), &server.url()).await, "ok");
        assert_eq!(server.stats().connections, 2);
    }
}

#[tokio::test]
async fn http_where_https_is_expected_and_the_reverse_say_so() {
    let ca = authority("trusted");
    let files = Files::trusting(&ca);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/metrics", listener.local_addr().unwrap());
    let answering = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            // Whatever comes is answered the way plain servers do.
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    assert_eq!(
        read(&files, &url).await,
        "tls: the Pod does not speak TLS on its metrics port although its metrics URL says https"
    );
    answering.abort();

    let config = server_config(&ca.identity(&["127.0.0.1"]), &Clients::Anyone, BOTH);
    let server = Server::https(config, |_| ok(BODY)).await;
    let outcome = read(&files, &server.url().replace("https", "http")).await;
    assert!(outcome.starts_with("other: the Pod's answer is not HTTP/1.1"), "{outcome}");
}

#[tokio::test]
async fn a_handshake_that_hangs_is_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/metrics", listener.local_addr().unwrap());
    let deployment = deployment().role("server", RoleKind::Server, 1).pod("a", "server", &url).build();
    let network = Network::new(Tls::from_files(&TlsFiles::default()).unwrap());
    let limits = modeldeployment_exporter::config::ScrapeLimits { timeout: Duration::from_secs(1), ..limits() };
    let mut scraper = Scraper::new(Arc::new(network), Arc::new(SystemClock::start()), limits);
    let expected = "timeout: SCRAPE_TIMEOUT (1s) was over before there was a connection to the Pod";
    assert_eq!(outcomes(&scraper.round(&deployment).await), [expected]);
}

#[test]
fn unusable_files_are_named() {
    let ca = authority("trusted");
    let (one, other) = (ca.identity(&["a"]), ca.identity(&["b"]));
    let files = Files::new();
    let missing = files.directory.path().join("missing.pem");
    let text = files.write("text.pem", "no certificate\n");
    let broken = files.write("broken.pem", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
    let no_der = files.write("no-der.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let cert = files.write("cert.pem", &one.certificate.pem());
    let key = files.write("other.key", &other.key.serialize_pem());
    let trust = |ca: &PathBuf| TlsFiles { ca: Some(ca.clone()), client: None };
    let client = |certificate: &PathBuf, key: &PathBuf| TlsFiles {
        ca: None,
        client: Some(ClientFiles { certificate: certificate.clone(), key: key.clone() }),
    };
    let table = [
        (trust(&missing), &missing, "No such file"),
        (trust(&text), &text, "it holds no PEM certificate"),
        (trust(&broken), &broken, "base64"),
        (trust(&no_der), &no_der, "BadEncoding"),
        (client(&text, &key), &text, "it holds no PEM certificate"),
        (client(&cert, &cert), &cert, "it holds no PEM private key"),
        (client(&cert, &missing), &missing, "No such file"),
        (client(&cert, &key), &cert, "KeyMismatch"),
    ];
    for (files, culprit, why) in table {
        let error = Tls::from_files(&files).unwrap_err().to_string();
        assert!(error.starts_with(&culprit.display().to_string()) && error.contains(why), "{files:?}: {error}");
    }
}
