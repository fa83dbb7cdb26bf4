//! Hosts with addresses of their own on one machine: network namespaces.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::command::prep_binary;
use crate::{Prep, TempDir, temp_dir};

fn ip(words: &[&str]) -> bool {
    Command::new("ip")
        .args(words)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Three hosts with addresses of their own, and a switch between them.
#[derive(Debug)]
pub struct Network {
    names: Vec<String>,
    folder: TempDir,
}

impl Network {
    /// `None` where this machine or user can have none.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let id = format!("{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut network = Self {
            names: Vec::new(),
            folder: temp_dir(),
        };
        let switch = format!("prep{id}s");
        let mut add = |name: &str| {
            let added = ip(&["netns", "add", name]) && ip(&["-n", name, "link", "set", "lo", "up"]);
            network.names.push(name.to_owned());
            added
        };
        let mut good = add(&switch)
            && ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])
            && ip(&["-n", &switch, "link", "set", "br0", "up"]);
        for host in 0..4 {
            let (name, port) = (format!("prep{id}h{host}"), format!("p{host}"));
            let address = format!("10.77.0.{}/24", host + 1);
            good = good
                && add(&name)
                && ip(&[
                    "-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns",
                    &name,
                ])
                && ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])
                && ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])
                && ip(&["-n", &name, "link", "set", "eth0", "up"]);
        }
        if !good {
            // Past the capture of the test's output, so that it shows.
            let _ = std::io::stderr().write_all(
                b"\nskipped: no network namespaces here (they take root and `ip`), so nothing ran on three hosts\n",
            );
            return None;
        }
        let text = format!("# three hosts\n{}\n", Self::hosts().join("\n"));
        fs::write(network.folder.path().join("hosts"), text).expect("the temporary folder is writable");
        Some(network)
    }

    /// Their places, as a hosts file has them.
    pub fn hosts() -> Vec<String> {
        (1..=3).map(|host| format!("10.77.0.{host}:7171")).collect()
    }

    /// A command of `prep` on a host.
    pub fn command(&self, host: usize, prep: &Prep, words: &[String]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.names[host + 1]])
            .arg(prep_binary())
            .args(words)
            .args(["--process", &host.to_string(), "--hosts"])
            .arg(self.folder.path().join("hosts"))
            .env("PREP_HOME", prep.home())
            .env("PREP_CATALOG", prep.catalog())
            .env("PREP_CLUSTER_SECRET", "a secret of tests")
            .env("NO_COLOR", "1");
        command
    }

    /// Pulls the cable of a host.
    ///
    /// # Panics
    /// If the system does not let us.
    pub fn cut(&self, host: usize) {
        let port = format!("p{host}");
        let words = ["-n", &self.names[0], "link", "set", &port, "down"];
        assert!(ip(&words), "`ip {words:?}`");
    }

    /// Puts it in again.
    ///
    /// # Panics
    /// If the system does not let us.
    pub fn mend(&self, host: usize) {
        let port = format!("p{host}");
        let words = ["-n", &self.names[0], "link", "set", &port, "up"];
        assert!(ip(&words), "`ip {words:?}`");
    }

    /// Sends something from the fourth host to the first, as a stranger.
    ///
    /// # Panics
    /// If it is not hung up on.
    pub fn stranger(&self) {
        let script = "exec 3<>/dev/tcp/10.77.0.1/7171; printf 'GET / HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3 >/dev/null; true";
        let status = Command::new("ip")
            .args([
                "netns",
                "exec",
                &self.names[4],
                "timeout",
                "20",
                "bash",
                "-c",
                script,
            ])
            .stderr(Stdio::null())
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "the stranger was not hung up on"
        );
    }

    /// Bytes that have gone through a host's cable, in both directions.
    ///
    /// # Panics
    /// If the system does not say.
    pub fn bytes_moved(&self, host: usize) -> u64 {
        let port = format!("p{host}");
        let output = Command::new("ip")
            .args(["-n", &self.names[0], "-j", "-s", "link", "show", &port])
            .output()
            .expect("`ip` starts");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("`ip -j` tells JSON");
        let stats = &told[0]["stats64"];
        let of = |way: &str| stats[way]["bytes"].as_u64().expect("`ip -s` counts bytes");
        of("rx") + of("tx")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.names.iter().rev() {
            let _ = Command::new("ip")
                .args(["netns", "delete", name])
                .stderr(Stdio::null())
                .status();
        }
    }
}
