//! `prep launch`: all processes of a cluster, on this machine.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::Outcome;
use crate::cli::output::{Usage, say};
use crate::cli::stop::is_ignored;
use crate::cluster::{HOSTS_VARIABLE, PROCESS_VARIABLE, SECRET_VARIABLE, read_hosts};

/// Identifier of the process that has started this one, and that it ends with.
const LAUNCHER_VARIABLE: &str = "PREP_LAUNCHER";
/// How long the others may take to end by themselves when one has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// And then, when they were asked to.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Starts all processes of a cluster on this machine and waits for them.
///
/// Each gets the command after `--`, which hosts there are and which it is, and a secret made for this run. What they say comes
/// with `[i]` in front on stderr; the output of process 0 is the output. If one fails, the rest end, and all end with this one, also
/// where that is killed. The exit code is the worst of theirs.
///
/// Example: prep launch --processes 2 -- build cifar10 --from ~/Downloads --workers 1
#[derive(Debug, Args)]
pub(crate) struct Launch {
    /// How many processes, on free ports of this machine.
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "hosts",
        conflicts_with = "hosts"
    )]
    processes: Option<usize>,
    /// File with their places, one `host:port` a line, all on this machine.
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// The command, without `prep`: build NAME ..., register RECIPE.toml ..., or convert INPUT... OUTPUT ....
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A process that was started.
struct Started {
    child: Child,
    status: Option<ExitStatus>,
    threads: Vec<JoinHandle<()>>,
}

pub(crate) fn run(args: &Launch, program: &[OsString]) -> Result<Outcome> {
    let hosts = match (&args.hosts, args.processes) {
        (Some(path), _) => read_hosts(path).map_err(Usage::of)?,
        (None, Some(count)) if (1..=256).contains(&count) => free_hosts(count)?,
        _ => return Err(Usage("`--processes` is out of range: 1 to 256".to_owned()).into()),
    };
    let mut secret = [0; 32];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut secret))
        .context("the system gives no random bytes")?;
    let secret = hex::encode(secret);

    // Registered before there is a process that a signal could miss.
    let signals = Signals::listen()?;
    let (program, first) = program
        .split_first()
        .context("nobody says which program this is")?;
    let mut processes = Vec::new();
    for index in 0..hosts.len() {
        let mut command = Command::new(program);
        command
            .args(first)
            .args(&args.command)
            .env(HOSTS_VARIABLE, hosts.join(","))
            .env(PROCESS_VARIABLE, index.to_string())
            .env(SECRET_VARIABLE, &secret)
            .env(LAUNCHER_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C reaches this process alone, which passes it on once.
            .process_group(0);
        if index > 0 {
            command.stdout(Stdio::piped());
        }
        match start(command, index) {
            Ok(started) => processes.push(started),
            Err(error) => {
                end(&mut processes);
                return Err(error.context(format!("could not start process {index}")));
            }
        }
    }
    wait(&mut processes, &signals);
    let mut worst = 0;
    for (index, process) in processes.iter_mut().enumerate() {
        for thread in process.threads.drain(..) {
            let _ = thread.join();
        }
        if let Some(status) = process.status {
            if status.code().is_none() {
                say(format_args!("[{index}] was ended by a signal: {status}"));
            }
            worst = worse(worst, status.code());
        }
    }
    Ok(Outcome::Exit(worst))
}

/// Has the system ask this process to end when the one that launched it has: that may be killed, and then passes nothing on.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_launcher() {
    use rustix::process::{getppid, set_parent_process_death_signal};

    let launcher = std::env::var(LAUNCHER_VARIABLE);
    let Some(launcher) = launcher.ok().and_then(|text| text.parse().ok()) else {
        return;
    };
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // It may have gone before the system knew.
    if getppid() != Pid::from_raw(launcher) {
        std::process::exit(1);
    }
}

/// There is no such request here: where the process that launched this one is killed, this one works on.
#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_launcher() {}

/// Places on this machine that nobody listens on.
fn free_hosts(count: usize) -> Result<Vec<String>> {
    // All are held at once, so that they differ.
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()
        .context("could not find free ports")?;
    let host = |listener: &TcpListener| Ok(listener.local_addr()?.to_string());
    let hosts: std::io::Result<_> = listeners.iter().map(host).collect();
    hosts.context("could not find free ports")
}

fn start(mut command: Command, index: usize) -> Result<Started> {
    let mut child = command.spawn()?;
    let mut threads = Vec::new();
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child
            .stderr
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        child
            .stdout
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    ];
    for pipe in pipes.into_iter().flatten() {
        threads.push(
            std::thread::Builder::new()
                .name(format!("process {index}"))
                .spawn(move || pass_on(pipe, index))?,
        );
    }
    Ok(Started {
        child,
        status: None,
        threads,
    })
}

/// Passes lines on to stderr, with the number of their process.
fn pass_on(pipe: Box<dyn Read + Send>, index: usize) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is cut, so that it takes no memory.
        match (&mut reader).take(64 << 10).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => say(format_args!(
                "[{index}] {}",
                String::from_utf8_lossy(&line).trim_end()
            )),
        }
    }
}

/// Waits for all; ends the rest when one has failed, and passes signals on.
fn wait(processes: &mut [Started], signals: &Signals) {
    let mut failed: Option<Instant> = None;
    let mut asked: Option<Instant> = None;
    loop {
        let mut running = 0;
        for process in processes.iter_mut().filter(|process| process.status.is_none()) {
            match process.child.try_wait() {
                Ok(Some(status)) => {
                    process.status = Some(status);
                    if !matches!(status.code(), Some(0 | 3)) {
                        failed.get_or_insert_with(Instant::now);
                    }
                }
                _ => running += 1,
            }
        }
        if running == 0 {
            return;
        }
        if let Some(signal) = signals.take() {
            for process in processes.iter() {
                send(process, signal);
            }
        }
        // Processes of a cluster notice by themselves; whoever does not is asked, and then made to.
        if asked.is_none() && failed.is_some_and(|since| since.elapsed() > PATIENCE) {
            asked = Some(Instant::now());
            for process in processes.iter() {
                send(process, Signal::TERM);
            }
        }
        if asked.is_some_and(|since| since.elapsed() > LAST_PATIENCE) {
            end(processes);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn send(process: &Started, signal: Signal) {
    if process.status.is_none()
        && let Some(id) = i32::try_from(process.child.id()).ok().and_then(Pid::from_raw)
    {
        // It may have ended just now.
        let _ = kill_process(id, signal);
    }
}

/// Kills those that still run.
fn end(processes: &mut [Started]) {
    for process in processes.iter_mut().filter(|process| process.status.is_none()) {
        let _ = process.child.kill();
        process.status = process.child.wait().ok();
    }
}

/// The worse of two exit codes: failed, wrong usage, records skipped, done.
fn worse(one: u8, other: Option<i32>) -> u8 {
    let other = other.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    let rank = |code: u8| match code {
        0 => 0,
        3 => 1,
        2 => 2,
        _ => 3,
    };
    if rank(other) > rank(one) { other } else { one }
}

/// Signals that ask to end, since one last looked.
struct Signals {
    interrupt: Arc<AtomicBool>,
    /// A request to end, or the end of the terminal: the processes are in groups of their own, and hear of neither.
    terminate: Arc<AtomicBool>,
}

impl Signals {
    fn listen() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

        let signals = Self {
            interrupt: Arc::default(),
            terminate: Arc::default(),
        };
        signal_hook::flag::register(SIGINT, Arc::clone(&signals.interrupt))
            .and_then(|_| signal_hook::flag::register(SIGTERM, Arc::clone(&signals.terminate)))
            .context("could not listen for signals")?;
        if !is_ignored(SIGHUP) {
            signal_hook::flag::register(SIGHUP, Arc::clone(&signals.terminate))
                .context("could not listen for signals")?;
        }
        Ok(signals)
    }

    fn take(&self) -> Option<Signal> {
        if self.interrupt.swap(false, Ordering::SeqCst) {
            return Some(Signal::INT);
        }
        self.terminate
            .swap(false, Ordering::SeqCst)
            .then_some(Signal::TERM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_exit_code_counts() {
        let worst = |codes: &[Option<i32>]| codes.iter().fold(0, |worst, code| worse(worst, *code));
        assert_eq!(worst(&[Some(0), Some(0)]), 0);
        assert_eq!(worst(&[Some(0), Some(3)]), 3);
        assert_eq!(worst(&[Some(3), Some(2)]), 2);
        assert_eq!(worst(&[Some(1), Some(3)]), 1);
        assert_eq!(worst(&[Some(0), None]), 1);
    }
}
