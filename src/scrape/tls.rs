//! TLS to Pods: what is trusted, who we are, and what a failure means.
//!
//! A certificate is always verified against the URL's host or address; nothing switches that off.
//! It opens no connection of its own and reads files only when it is made.

use super::connector::{self, BoxedStream};
use crate::config::{ClientFiles, TlsFiles};
use rustls_native_certs::load_native_certs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::{ResolvesClientCert, Resumption};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, ClientConfig, RootCertStore, SignatureScheme, crypto,
};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A file cannot be read or is no PEM.
    #[error("{}: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: pem::Error,
    },
    /// A file holds nothing of the kind that is wanted.
    #[error("{}: it holds no PEM {wanted}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What is wanted.
        wanted: &'static str,
    },
    /// A certificate or key in a file cannot be used.
    #[error("{}: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The library has no usable cipher suite.
    #[error("TLS cannot be set up: {0}")]
    Library(rustls::Error),
}

/// What went wrong with TLS, as the sentence for people: without times and addresses, so that it
/// stays equal while nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No trusted authority signed the certificate.
    #[error(
        "the Pod's certificate is not signed by a trusted authority; SCRAPE_CA_FILE names the authorities to trust"
    )]
    UnknownIssuer,
    /// The certificate is for another name or address.
    #[error("the Pod's certificate is not valid for the host or address in its metrics URL")]
    WrongName,
    /// The certificate's time is over.
    #[error("the Pod's certificate has expired")]
    Expired,
    /// The certificate's time has not come.
    #[error("the Pod's certificate is not valid yet")]
    NotValidYet,
    /// The certificate is not one for servers.
    #[error("the Pod's certificate is not one for servers")]
    Purpose,
    /// The certificate is not accepted for another reason.
    #[error("the Pod's certificate is not accepted: {0}")]
    Certificate(String),
    /// The server wants a client certificate and none is configured.
    #[error(
        "the Pod asks for a client certificate; SCRAPE_CLIENT_CERT_FILE and SCRAPE_CLIENT_KEY_FILE name the one to show"
    )]
    ClientCertificateRequired,
    /// The server does not take the client certificate that is configured.
    #[error("the Pod does not accept the client certificate of SCRAPE_CLIENT_CERT_FILE")]
    ClientCertificateRefused,
    /// The peer's first bytes are no TLS.
    #[error("the Pod does not speak TLS on its metrics port although its metrics URL says https")]
    NotTls,
    /// Any other failure, in the library's words.
    #[error("TLS with the Pod failed: {0}")]
    Other(String),
}

/// Trust and client identity for https streams.
#[derive(Debug, Clone)]
pub struct Tls {
    config: ClientConfig,
}

impl Tls {
    /// The system's roots, or the authorities of a file instead; a client identity where files give one.
    /// All files are PEM.
    pub fn from_files(files: &TlsFiles) -> Result<Tls, FileError> {
        let mut roots = RootCertStore::empty();
        match &files.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|source| FileError::Unusable { path: path.clone(), source })?;
                }
            }
            // A machine without roots is no error: most Pods serve plain http.
            None => {
                roots.add_parsable_certificates(load_native_certs().certs);
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(FileError::Library)?
            .with_root_certificates(roots);
        let config = match &files.client {
            None => builder.with_no_client_auth(),
            Some(ClientFiles { certificate, key }) => {
                let chain = certificates(certificate)?;
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|source| match source {
                    pem::Error::NoItemsFound => FileError::Empty { path: key.clone(), wanted: "private key" },
                    source => FileError::Pem { path: key.clone(), source },
                })?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|source| FileError::Unusable { path: certificate.clone(), source })?
            }
        };
        Ok(Tls::new(config))
    }

    /// TLS with a configuration made elsewhere.
    pub fn new(mut config: ClientConfig) -> Tls {
        // A resumed session does not repeat a request for a client certificate, and its state would
        // be memory per Pod for a handshake that connections of seconds seldom repeat.
        config.resumption = Resumption::disabled();
        Tls { config }
    }

    /// Opens TLS over a stream and verifies the certificate against a host name or address.
    pub(super) async fn wrap(&self, host: &str, stream: BoxedStream) -> Result<BoxedStream, connector::Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| connector::Error::Url)?;
        let identity = Arc::new(Identity {
            inner: Arc::clone(&self.config.client_auth_cert_resolver),
            asked: AtomicBool::new(false),
        });
        let mut config = self.config.clone();
        config.client_auth_cert_resolver = Arc::clone(&identity) as Arc<dyn ResolvesClientCert>;
        match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
            Ok(inner) => Ok(Box::new(Explained { inner, identity, answered: false })),
            Err(error) => Err(identity.explain(&error).unwrap_or_else(|| connector::Error::from_io(&error))),
        }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let fail = |source| FileError::Pem { path: path.to_owned(), source };
    let found = CertificateDer::pem_file_iter(path).map_err(fail)?.collect::<Result<Vec<_>, _>>().map_err(fail)?;
    if found.is_empty() { Err(FileError::Empty { path: path.to_owned(), wanted: "certificate" }) } else { Ok(found) }
}

/// One connection's client identity, which notes whether the server asked for it.
#[derive(Debug)]
struct Identity {
    inner: Arc<dyn ResolvesClientCert>,
    asked: AtomicBool,
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, root_hint_subjects: &[&[u8]], sigschemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        self.inner.resolve(root_hint_subjects, sigschemes)
    }

    fn has_certs(&self) -> bool {
        self.inner.has_certs()
    }
}

impl Identity {
    /// Whether the server asked for a certificate that we do not have.
    fn lacks(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && !self.inner.has_certs()
    }

    /// What a failure before the first answer means, if it is about TLS: a server that goes away
    /// after it asked in vain for a certificate did so for want of it, alert or no alert.
    fn explain(&self, error: &io::Error) -> Option<connector::Error> {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => Some(self.explain_tls(error).into()),
            None => self.lacks().then_some(Error::ClientCertificateRequired.into()),
        }
    }

    fn explain_tls(&self, error: &rustls::Error) -> Error {
        match error {
            rustls::Error::InvalidCertificate(error) => explain_certificate(error),
            rustls::Error::InvalidMessage(_) => Error::NotTls,
            rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => Error::ClientCertificateRequired,
            rustls::Error::AlertReceived(alert) if self.asked.load(Ordering::Relaxed) && about_certificates(*alert) => {
                if self.lacks() {
                    Error::ClientCertificateRequired
                } else {
                    Error::ClientCertificateRefused
                }
            }
            other => Error::Other(other.to_string()),
        }
    }
}

fn explain_certificate(error: &CertificateError) -> Error {
    match error {
        CertificateError::UnknownIssuer => Error::UnknownIssuer,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Error::WrongName,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Error::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Error::NotValidYet,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => Error::Purpose,
        other => Error::Certificate(other.to_string()),
    }
}

/// The alerts with which servers turn down a client for its certificate or for having none
/// (RFC 8446, section 6.2; before TLS 1.3 a missing one is a `handshake_failure`).
fn about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::HandshakeFailure
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
            | AlertDescription::DecodeError
    )
}

/// A TLS stream whose failures say what they mean: since TLS 1.3 a server turns a client down only
/// after the client's side of the handshake is over, so it is the first read that learns of it.
struct Explained {
    inner: TlsStream<BoxedStream>,
    identity: Arc<Identity>,
    /// Whether any byte of an answer has arrived; after that, a lost connection is only that.
    answered: bool,
}

impl Explained {
    fn explain(&self, error: io::Error) -> io::Error {
        let meaning = if self.answered { None } else { self.identity.explain(&error) };
        meaning.map_or(error, io::Error::other)
    }
}

impl AsyncRead for Explained {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, buf));
        Poll::Ready(match read {
            Ok(()) if buf.filled().len() > before => {
                self.answered = true;
                Ok(())
            }
            Ok(()) if !self.answered && self.identity.lacks() => {
                Err(io::Error::other(connector::Error::from(Error::ClientCertificateRequired)))
            }
            Ok(()) => Ok(()),
            Err(error) => Err(self.explain(error)),
        })
    }
}

impl AsyncWrite for Explained {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf));
        Poll::Ready(written.map_err(|error| self.explain(error)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.inner).poll_flush(cx));
        Poll::Ready(flushed.map_err(|error| self.explain(error)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
