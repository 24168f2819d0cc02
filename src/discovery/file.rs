//! Discovery from a deployment file, read again when it changes (contract, section 3).
//!
//! It never keeps or shows arguments or a URL's user information, and a version of the file that
//! does not parse never replaces one that did.

mod parse;

pub use parse::{Problem, parse};

use super::Discovery;
use crate::catalogue::Catalogue;
use crate::deployment::Deployment;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// From one look at the file to the next.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A changed file is read again after this long: a version that is still being written, of which
/// a part may parse, is not taken.
const SETTLE: Duration = Duration::from_millis(100);

/// The largest file that is read, in bytes; a ConfigMap holds at most 1 MiB.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Why a deployment file is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("{}", .0)]
    Read(ReadError),
    /// It is no YAML.
    #[error("the file is not valid YAML: {what}")]
    Syntax {
        /// What is wrong, and where.
        what: String,
    },
    /// It does not describe a deployment.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

/// Why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such file.
    #[error("there is no such file; accepted: the path of a YAML or JSON file")]
    NotFound,
    /// The path is a directory.
    #[error("it is a directory; accepted: a YAML or JSON file")]
    Directory,
    /// The path is a pipe, socket or device, which cannot be read again.
    #[error("it is not a regular file; accepted: a YAML or JSON file that can be read again")]
    NotAFile,
    /// The process may not read it.
    #[error("permission denied; the user that runs the exporter must be allowed to read it")]
    PermissionDenied,
    /// It is too large.
    #[error("it is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// Another error of the system.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// Every thing that is wrong, one line each.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Error::Invalid(problems) => problems.iter().map(ToString::to_string).collect(),
            other => vec![other.to_string()],
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        match error.kind() {
            io::ErrorKind::NotFound => ReadError::NotFound,
            io::ErrorKind::PermissionDenied => ReadError::PermissionDenied,
            io::ErrorKind::IsADirectory => ReadError::Directory,
            _ => ReadError::Other(error.to_string()),
        }
    }
}

/// Reads a deployment file once.
///
/// # Errors
/// Everything that is wrong with it, as far as it can be told at once.
pub fn load(path: &Path, catalogue: &Catalogue) -> Result<Deployment, Error> {
    read(path).map_err(Error::Read).and_then(|text| parse::parse(&text, catalogue))
}

fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    // Asked before opening, because opening a pipe waits for its writer.
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(ReadError::Directory);
    }
    if !metadata.is_file() {
        return Err(ReadError::NotAFile);
    }
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES { Err(ReadError::TooLarge) } else { Ok(text) }
}

/// A version of the file, or why there was none to read.
type Version = Result<Vec<u8>, ReadError>;

/// Watches a deployment file and publishes the newest version that parses.
#[derive(Debug)]
pub struct FileDiscovery {
    path: PathBuf,
    catalogue: Arc<Catalogue>,
    /// The last version that was looked at, taken or not: each is judged once.
    last: Version,
    sender: watch::Sender<Discovery>,
}

impl FileDiscovery {
    /// Reads the file for the first time, which has to succeed.
    ///
    /// # Errors
    /// As [`load`].
    pub fn start(path: PathBuf, catalogue: Arc<Catalogue>) -> Result<FileDiscovery, Error> {
        let text = read(&path).map_err(Error::Read)?;
        let deployment = Some(Arc::new(parse::parse(&text, &catalogue)?));
        let (sender, _) = watch::channel(Discovery { deployment, synced: true, stale: false, reload_failures: 0 });
        Ok(FileDiscovery { path, catalogue, last: Ok(text), sender })
    }

    /// A receiver of what discovery knows, from now on.
    pub fn subscribe(&self) -> watch::Receiver<Discovery> {
        self.sender.subscribe()
    }

    /// Looks at the file about every second; ends once no receiver is left.
    ///
    /// Contents are compared, never times or inodes: a ConfigMap's update swaps a symbolic link.
    pub async fn run(mut self) {
        loop {
            tokio::select! {
                () = self.sender.closed() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            let version = self.look().await;
            if version == self.last {
                continue;
            }
            tokio::time::sleep(SETTLE).await;
            if self.look().await == version {
                self.judge(version);
            }
        }
    }

    async fn look(&self) -> Version {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        read.unwrap_or_else(|error| Err(ReadError::Other(error.to_string())))
    }

    /// Takes a new version if it parses; else keeps the last good one and says why.
    fn judge(&mut self, version: Version) {
        let parsed = version.clone().map_err(Error::Read).and_then(|text| parse::parse(&text, &self.catalogue));
        let file = self.path.display();
        match parsed {
            Ok(deployment) => {
                let (namespace, name) = (&deployment.namespace, &deployment.name);
                tracing::info!(%file, %namespace, %name, pods = deployment.pods.len(), "deployment file read");
                self.sender.send_modify(|discovery| discovery.deployment = Some(Arc::new(deployment)));
            }
            Err(error) => {
                let error = error.lines().join("; ");
                tracing::warn!(%file, %error, "deployment file not taken, the last good version stays");
                self.sender.send_modify(|discovery| discovery.reload_failures += 1);
            }
        }
        self.last = version;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;
    use tokio::task::JoinHandle;

    fn text(name: &str, pods: usize) -> String {
        let pod = |n| format!("  - {{name: p{n}, role: s, url: 'http://h:{n}/'}}\n");
        let pods: String = (1..=pods).map(pod).collect();
        format!(
            "metadata: {{name: {name}, namespace: n}}\nspec: {{engine: {{name: vLLM}}, roles: [{{name: s}}]}}\npods:\n{pods}"
        )
    }

    /// A watched file in a directory of its own.
    struct Watched {
        directory: TempDir,
        receiver: watch::Receiver<Discovery>,
        task: JoinHandle<()>,
    }

    impl Watched {
        fn start(first: &str) -> Watched {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("deployment.yaml");
            fs::write(&path, first).unwrap();
            Watched::watch(directory, path)
        }

        fn watch(directory: TempDir, path: PathBuf) -> Watched {
            let catalogue = Arc::new(Catalogue::embedded().unwrap());
            let discovery = FileDiscovery::start(path, catalogue).unwrap();
            let receiver = discovery.subscribe();
            Watched { directory, receiver, task: tokio::spawn(discovery.run()) }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("deployment.yaml")
        }

        /// The next thing that is published: the deployment's name, its Pods, and the failures.
        async fn next(&mut self) -> (String, usize, u64) {
            let changed = tokio::time::timeout(Duration::from_secs(30), self.receiver.changed());
            changed.await.unwrap().unwrap();
            self.now()
        }

        fn now(&mut self) -> (String, usize, u64) {
            let discovery = self.receiver.borrow_and_update();
            let deployment = discovery.deployment.as_ref().unwrap();
            assert!(discovery.synced && !discovery.stale);
            (deployment.name.clone(), deployment.pods.len(), discovery.reload_failures)
        }
    }

    #[tokio::test]
    async fn a_changed_file_is_taken_and_a_broken_one_keeps_the_last_good_one() {
        let mut watched = Watched::start(&text("a", 1));
        assert_eq!(watched.now(), ("a".to_owned(), 1, 0));
        fs::write(watched.path(), text("a", 2)).unwrap();
        assert_eq!(watched.next().await, ("a".to_owned(), 2, 0));
        fs::write(watched.path(), "pods: [").unwrap();
        assert_eq!(watched.next().await, ("a".to_owned(), 2, 1));
        // Another broken version counts again; the same one, however often it is looked at, does not.
        fs::write(watched.path(), "pods: {").unwrap();
        assert_eq!(watched.next().await, ("a".to_owned(), 2, 2));
        fs::remove_file(watched.path()).unwrap();
        assert_eq!(watched.next().await, ("a".to_owned(), 2, 3));
        // The metadata may change too.
        fs::write(watched.path(), text("b", 3)).unwrap();
        assert_eq!(watched.next().await, ("b".to_owned(), 3, 3));
    }

    #[tokio::test]
    async fn a_config_maps_swapped_link_is_followed() {
        // A ConfigMap's volume: the file is a link through `..data`, which a rename swaps.
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        for (version, pods) in [("..1", 1), ("..2", 2)] {
            fs::create_dir(root.join(version)).unwrap();
            fs::write(root.join(version).join("deployment.yaml"), text("a", pods)).unwrap();
        }
        symlink("..1", root.join("..data")).unwrap();
        symlink("..data/deployment.yaml", root.join("deployment.yaml")).unwrap();
        let mut watched = Watched::watch(directory, root.join("deployment.yaml"));
        assert_eq!(watched.now(), ("a".to_owned(), 1, 0));
        symlink("..2", root.join("..next")).unwrap();
        fs::rename(root.join("..next"), root.join("..data")).unwrap();
        fs::remove_dir_all(root.join("..1")).unwrap();
        assert_eq!(watched.next().await, ("a".to_owned(), 2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn each_version_is_judged_once() {
        let mut watched = Watched::start(&text("a", 1));
        fs::write(watched.path(), "broken: [").unwrap();
        assert_eq!(watched.next().await, ("a".to_owned(), 1, 1));
        // Many looks later nothing more is counted.
        tokio::time::sleep(POLL_INTERVAL * 50).await;
        assert!(!watched.receiver.has_changed().unwrap());
        // Back to the version before, and to the broken one: both are changes.
        fs::write(watched.path(), text("a", 1)).unwrap();
        assert_eq!(watched.next().await, ("a".to_owned(), 1, 1));
        fs::write(watched.path(), "broken: [").unwrap();
        assert_eq!(watched.next().await, ("a".to_owned(), 1, 2));
    }

    #[tokio::test]
    async fn watching_ends_with_its_last_receiver() {
        let watched = Watched::start(&text("a", 1));
        drop(watched.receiver);
        tokio::time::timeout(Duration::from_secs(30), watched.task).await.unwrap().unwrap();
    }

    #[test]
    fn files_that_cannot_be_read_say_why() {
        let directory = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::embedded().unwrap();
        let error = |path: &Path| load(path, &catalogue).unwrap_err();
        assert_eq!(error(&directory.path().join("none")), Error::Read(ReadError::NotFound));
        assert_eq!(error(directory.path()), Error::Read(ReadError::Directory));
        assert_eq!(error(Path::new("/dev/null")), Error::Read(ReadError::NotAFile));
        let large = directory.path().join("large");
        fs::File::create(&large).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert_eq!(error(&large), Error::Read(ReadError::TooLarge));
        let closed = directory.path().join("closed");
        fs::write(&closed, text("a", 1)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        // The superuser may read it all the same.
        if fs::File::open(&closed).is_err() {
            assert_eq!(error(&closed), Error::Read(ReadError::PermissionDenied));
        }
        let denied = ReadError::from(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(denied, ReadError::PermissionDenied);
    }
}
