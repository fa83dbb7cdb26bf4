//! Processes that run side by side, as those of a cluster do.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Prep;

/// Longer than anything here may take; so that a fault is a failure, and no endless wait.
pub const FOREVER: Duration = Duration::from_secs(120);

/// Waits until something is so.
///
/// # Panics
/// If it does not become so, for ever so long; with what `told` says.
#[track_caller]
pub fn wait_for(mut is_so: impl FnMut() -> bool, told: impl FnOnce() -> String) {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > FOREVER {
            panic!("{}", told());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lets a command run for a time, then kills it; what it says goes nowhere.
///
/// # Panics
/// If it does not start.
pub fn kill_after(mut command: Command, time: Duration) {
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    std::thread::sleep(time);
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs a command to its end, and gives the most memory that it had resident, in MiB.
///
/// # Panics
/// If it does not start, or fails.
#[track_caller]
pub fn peak_mib(mut command: Command) -> u64 {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("the command starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let found = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        peak = peak.max(found.unwrap_or(0));
        if let Some(status) = child.try_wait().expect("a child can be asked about") {
            assert!(status.success(), "the command failed: {status}");
            return peak / 1024;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whose child a process is; `None` where it does not run any more.
pub fn running(id: u32) -> Option<u32> {
    // As in `17 (a name) S 16 ...`, `Z` for one that has ended, and that nobody has asked about.
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (state, rest) = text.rsplit_once(") ")?.1.split_once(' ')?;
    let parent = rest.split(' ').next()?.parse().ok();
    parent.filter(|_| !matches!(state, "Z" | "X"))
}

/// Places on this machine that nobody listens on.
///
/// # Panics
/// If there are none.
pub fn free_hosts(count: usize) -> Vec<String> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free"))
        .collect();
    let address = |listener: &TcpListener| {
        listener
            .local_addr()
            .expect("a listener has an address")
            .to_string()
    };
    listeners.iter().map(address).collect()
}

/// One process of a cluster.
pub struct Process {
    child: Child,
    output: Vec<Arc<Mutex<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Process({})", self.child.id())
    }
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Starts it; what it says is read as it comes.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let pipes: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("stdout is a pipe")),
            Box::new(child.stderr.take().expect("stderr is a pipe")),
        ];
        let (mut output, mut readers) = (Vec::new(), Vec::new());
        for mut pipe in pipes {
            let text = Arc::new(Mutex::new(String::new()));
            output.push(Arc::clone(&text));
            readers.push(std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                    let part = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    lock(&text).push_str(&part);
                }
            }));
        }
        Self {
            child,
            output,
            readers,
        }
    }

    /// What it has said so far on standard error.
    pub fn stderr(&self) -> String {
        lock(&self.output[1]).clone()
    }

    /// Waits until it says something on standard error.
    ///
    /// # Panics
    /// If it does not, for ever so long.
    #[track_caller]
    pub fn wait_until(&self, what: &str) {
        wait_for(
            || self.stderr().contains(what),
            || format!("it does not say `{what}`: {}", self.stderr()),
        );
    }

    /// Kills it with `SIGKILL`; [`end`](Self::end) then gives -1.
    ///
    /// # Panics
    /// If the system does not let us.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// If the system does not say.
    pub fn has_ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("the system knows our children")
            .is_some()
    }

    /// Its identifier.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Identifiers of the processes that it has started and that still run.
    ///
    /// # Panics
    /// If the system does not list its processes.
    pub fn children(&self) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").expect("the system lists its processes");
        let ids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        ids.filter(|id| running(*id) == Some(self.id())).collect()
    }

    /// Waits for its end; gives the exit code (-1 for a signal), stdout and stderr.
    ///
    /// # Panics
    /// If it does not end, for ever so long.
    pub fn end(mut self) -> (i32, String, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the system knows our children") {
                break status;
            }
            if begun.elapsed() > FOREVER {
                let said = self.stderr();
                self.child.kill().expect("a child can be killed");
                panic!("a process does not end; it said:\n{said}");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        for reader in self.readers.drain(..) {
            reader.join().expect("the reader does not panic");
        }
        let text = |index: usize| lock(&self.output[index]).clone();
        (status.code().unwrap_or(-1), text(0), text(1))
    }

    /// Sends it a signal, such as `-TERM`.
    ///
    /// # Panics
    /// If it cannot be sent.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "`kill {name} {id}`");
    }
}

/// The command of process `index` of these hosts.
pub fn member<'a>(
    prep: &Prep,
    arguments: impl IntoIterator<Item = &'a str>,
    hosts: &[String],
    index: usize,
) -> Command {
    let mut command = prep.command(arguments);
    command
        .env("PREP_CLUSTER_HOSTS", hosts.join(","))
        .env("PREP_CLUSTER_PROCESS", index.to_string())
        .env("PREP_CLUSTER_SECRET", "a secret of tests");
    command
}

impl Drop for Process {
    /// A test that fails leaves nobody behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
