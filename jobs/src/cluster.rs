//! Which processes do a job together: from flags, a hosts file, Slurm, or an indexed Kubernetes job.
#![doc = include_str!("cluster.md")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use prep_dataflow::{Cluster, ClusterSpec};

use crate::error::{Hinted, Usage};
use crate::monitor::Monitor;

/// The port of a host that names none.
pub const DEFAULT_PORT: u16 = 7171;
/// The hosts of a cluster, separated by commas; what `prep launch` gives to the processes it starts.
pub const HOSTS_VARIABLE: &str = "PREP_CLUSTER_HOSTS";
/// Which of them a process is.
pub const PROCESS_VARIABLE: &str = "PREP_CLUSTER_PROCESS";
/// The secret that all processes share.
pub const SECRET_VARIABLE: &str = "PREP_CLUSTER_SECRET";
/// More nodes than a list can mean.
const MOST_NODES: usize = 100_000;
/// For tests: what a process says its version is.
const TEST_VERSION_VARIABLE: &str = "PREP_TEST_VERSION";

/// The flags of a job that several processes do together.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// File with the processes of a cluster, one `host:port` a line; give the same command to each.
    ///
    /// `#` begins a comment, IPv6 addresses stand in brackets, the port is 7171 where none is given. All processes need the same
    /// output folder, on a file system that they share, and a common secret in `$PREP_CLUSTER_SECRET` or `--secret-file`. In place of this
    /// flag: `$PREP_CLUSTER_HOSTS`, the same separated by commas; under Slurm (`srun prep ...`) nothing; in an indexed Kubernetes job
    /// `$PREP_PROCESSES` and `$PREP_HOSTS_PATTERN`, as in `myjob-{}.mysvc:7171`. `prep launch` starts all processes on one machine.
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// Which line of the hosts file this process is, from 0.
    #[arg(long, value_name = "I", env = PROCESS_VARIABLE)]
    pub process: Option<usize>,
    /// How long the other processes may take to come up, in seconds [default: 15].
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// File that holds the cluster's secret, in place of $PREP_CLUSTER_SECRET.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

/// Who is in a cluster, and which of them this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Members {
    hosts: Vec<String>,
    index: usize,
}

/// Looks up a variable of the environment.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

impl ClusterArgs {
    /// Meets the other processes; `None` where there are none. `arguments` say what this process was asked to do, without secrets: they have
    /// to be the same everywhere. Refused strangers are told to the monitor.
    ///
    /// # Errors
    /// Flags, files or variables that make no cluster, and a secret that is missing, which are wrong usage; processes that did not come, or do not
    /// fit.
    pub fn connect(
        &self,
        arguments: Vec<String>,
        monitor: &std::sync::Arc<Monitor>,
    ) -> Result<Option<Cluster>> {
        let variables = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(members) = self.members(&variables)? else {
            return Ok(None);
        };
        let secret = self.secret(&variables, monitor).map_err(Usage::of)?;
        let version =
            variables(TEST_VERSION_VARIABLE).unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned());
        // Not the monitor itself, which may hold the cluster: neither would ever go, and a cluster that does not go does not say goodbye.
        let told = std::sync::Arc::downgrade(monitor);
        let spec = ClusterSpec::new(members.hosts, members.index, secret)
            .version(version)
            .arguments(arguments)
            .wait(Duration::from_secs(self.wait.unwrap_or(15)))
            .warn(move |text| {
                if let Some(monitor) = told.upgrade() {
                    monitor.warn(text);
                }
            });
        let cluster = Cluster::connect(spec).map_err(|error| {
            let hint = "every process has to be started with the same command, hosts and secret; `--wait` gives them more time";
            anyhow::Error::new(error).context(Hinted::new("the processes of the cluster did not come together", hint))
        })?;
        Ok(Some(cluster))
    }

    /// Which process this is, where there are several; nobody is asked.
    ///
    /// # Errors
    /// Flags, files or variables that make no cluster.
    pub fn index(&self) -> Result<Option<usize>> {
        let variables = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Ok(self.members(&variables)?.map(|members| members.index))
    }

    /// Makes sure that this process is alone, for a command that one process does: others would do the same once more.
    ///
    /// # Errors
    /// The environment says that it is one of several, or makes no cluster: wrong usage.
    pub(crate) fn refuse_others(command: &str) -> Result<()> {
        let variables = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let this = Self {
            process: variables(PROCESS_VARIABLE).and_then(|text| text.parse().ok()),
            ..Self::default()
        };
        match this.members(&variables)? {
            Some(members) if members.hosts.len() > 1 => Err(Usage::of(
                Hinted::new(
                    format!(
                        "`prep {command}` is done by one process, and this is process {} of {}",
                        members.index,
                        members.hosts.len()
                    ),
                    "give it to one process, with `--workers N` for its threads; `build`, `register` and `convert` are done by several",
                )
                .into(),
            )),
            _ => Ok(()),
        }
    }

    fn members(&self, variables: Variables<'_>) -> Result<Option<Members>> {
        // What is wrong with all of them together is wrong usage, as it is with each.
        self.find_members(variables).map_err(Usage::of)
    }

    fn find_members(&self, variables: Variables<'_>) -> Result<Option<Members>> {
        if let Some(path) = &self.hosts {
            return Ok(Some(self.numbered(read_hosts(path)?)?));
        }
        if let Some(list) = variables(HOSTS_VARIABLE) {
            return Ok(Some(self.numbered(parse_hosts(&list.replace(',', "\n")))?));
        }
        if self.process.is_some() {
            return Err(Hinted::new(
                "there is a `--process`, but no list of the processes",
                "give `--hosts FILE` too",
            )
            .into());
        }
        if let Some(members) = slurm(variables)? {
            if self.secret_file.is_none() && variables(SECRET_VARIABLE).is_none() {
                // A command in a batch script, outside of `srun`, is alone although the job has many tasks.
                if variables("SLURM_STEP_ID").is_none() {
                    return Ok(None);
                }
                let text = format!(
                    "this is task {} of {} of a Slurm job, and there is no secret for a cluster",
                    members.index,
                    members.hosts.len()
                );
                let hint = "export PREP_CLUSTER_SECRET before `srun`, or give `--secret-file`; with `srun -n 1` one process works alone";
                return Err(Hinted::new(text, hint).into());
            }
            return Ok(Some(members));
        }
        kubernetes(variables)
    }

    fn numbered(&self, hosts: Vec<String>) -> Result<Members> {
        let count = hosts.len();
        match self.process {
            Some(index) if index < count => Ok(Members { hosts, index }),
            Some(index) => bail!(
                "`--process {index}` is out of range: with {count} hosts it is 0 to {}",
                count - 1
            ),
            None => Err(Hinted::new(
                "there is a list of processes, but nothing says which of them this is",
                "give `--process I`, the line of the hosts file, from 0",
            )
            .into()),
        }
    }

    fn secret(&self, variables: Variables<'_>, monitor: &Monitor) -> Result<Vec<u8>> {
        let Some(path) = &self.secret_file else {
            return variables(SECRET_VARIABLE).map(String::into_bytes).ok_or_else(|| {
                Hinted::new(
                    "the processes of a cluster need a common secret, and there is none",
                    "set PREP_CLUSTER_SECRET to the same long random text for all of them, or give `--secret-file FILE`",
                )
                .into()
            });
        };
        read_secret(path, monitor)
    }
}

fn read_secret(path: &Path, monitor: &Monitor) -> Result<Vec<u8>> {
    let shown = path.display();
    let text = std::fs::read(path).with_context(|| format!("could not read the secret file {shown}"))?;
    let mode = std::fs::metadata(path).map_or(0, |file| file.permissions().mode());
    if mode & 0o007 != 0 {
        monitor.warn(format!(
            "everybody on this machine can read the secret file {shown}; `chmod 600` it"
        ));
    }
    let secret = text.trim_ascii();
    if secret.is_empty() {
        bail!("the secret file {shown} is empty");
    }
    Ok(secret.to_vec())
}

/// The hosts of a file, one a line.
pub(crate) fn read_hosts(path: &Path) -> Result<Vec<String>> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("could not read the hosts file {shown}"))?;
    let hosts = parse_hosts(&text);
    if hosts.is_empty() {
        bail!("the hosts file {shown} names no hosts");
    }
    if let Some(host) = hosts.iter().find(|host| host.contains(char::is_whitespace)) {
        bail!("the hosts file {shown} has more than one host in a line: `{host}`");
    }
    Ok(hosts)
}

/// The hosts of a text, one a line.
fn parse_hosts(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(with_port).collect()
}

/// A host with a port.
fn with_port(host: &str) -> String {
    let has_port = match host.rfind(']') {
        Some(end) => host[end..].contains(':'),
        None => host.contains(':'),
    };
    if has_port {
        host.to_owned()
    } else {
        format!("{host}:{DEFAULT_PORT}")
    }
}

/// The tasks of a Slurm job step; `None` outside of one, or where there is one task.
fn slurm(variables: Variables<'_>) -> Result<Option<Members>> {
    let either = |first: &str, second: &str| variables(first).or_else(|| variables(second));
    let (Some(tasks), Some(index)) = (
        either("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        variables("SLURM_PROCID"),
    ) else {
        return Ok(None);
    };
    let number = |name: &str, text: &str| -> Result<usize> {
        text.parse()
            .map_err(|_| anyhow!("{name} is `{text}`, not a number"))
    };
    let (tasks, index) = (number("SLURM_NTASKS", &tasks)?, number("SLURM_PROCID", &index)?);
    if tasks <= 1 {
        return Ok(None);
    }
    if index >= tasks {
        bail!("SLURM_PROCID is {index}, but there are {tasks} tasks");
    }
    let list = either("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
        .context("there are Slurm tasks, but SLURM_JOB_NODELIST is not set")?;
    let nodes = expand_nodes(&list).with_context(|| format!("could not read the list of nodes `{list}`"))?;
    let per_node = match either("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") {
        Some(text) => {
            expand_counts(&text).with_context(|| format!("could not read the tasks per node `{text}`"))?
        }
        None if tasks.is_multiple_of(nodes.len().max(1)) => vec![tasks / nodes.len().max(1); nodes.len()],
        None => bail!(
            "{tasks} tasks on {} nodes, and SLURM_TASKS_PER_NODE is not set",
            nodes.len()
        ),
    };
    if per_node.len() != nodes.len() || per_node.iter().sum::<usize>() != tasks {
        bail!("Slurm says {tasks} tasks, but {per_node:?} on nodes {nodes:?}");
    }
    let job: u64 = variables("SLURM_JOB_ID")
        .and_then(|job| job.parse().ok())
        .unwrap_or(0);
    // Below the ports that systems give to outgoing connections; 16 for each job.
    let first_port = 10_000 + (job % 1250) * 16;
    let mut hosts = Vec::new();
    let mut nodes_of_tasks = Vec::new();
    for (node, (name, count)) in nodes.iter().zip(&per_node).enumerate() {
        for task in 0..*count {
            hosts.push(format!("{name}:{}", first_port + task as u64));
            nodes_of_tasks.push(node);
        }
    }
    if let Some(node) = variables("SLURM_NODEID").and_then(|node| node.parse::<usize>().ok())
        && nodes_of_tasks.get(index) != Some(&node)
    {
        return Err(Hinted::new(
            format!("Slurm's task {index} is on node {node}, and not where a block distribution puts it"),
            "give `srun --distribution=block`, or a hosts file",
        )
        .into());
    }
    Ok(Some(Members { hosts, index }))
}

/// The nodes of a list as `gpu[01-03,7],login,rack[1-2]n[0-1]`.
fn expand_nodes(list: &str) -> Result<Vec<String>> {
    let mut nodes = Vec::new();
    let mut depth = 0usize;
    let mut start = 0;
    for (at, character) in list.char_indices().chain([(list.len(), ',')]) {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).context("a `]` without a `[`")?,
            ',' if depth == 0 => {
                if at > start {
                    nodes.extend(expand_brackets(&list[start..at])?);
                }
                start = at + 1;
            }
            _ => {}
        }
        if nodes.len() > MOST_NODES {
            bail!("more than {MOST_NODES} nodes");
        }
    }
    if depth > 0 {
        bail!("a `[` without a `]`");
    }
    Ok(nodes)
}

fn expand_brackets(text: &str) -> Result<Vec<String>> {
    let Some((before, rest)) = text.split_once('[') else {
        return Ok(vec![text.to_owned()]);
    };
    let (ranges, after) = rest.split_once(']').context("a `[` without a `]`")?;
    let tails = expand_brackets(after)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            text.parse::<u64>()
                .map_err(|_| anyhow!("`{range}` is not a number or a range"))
        };
        let (low, high) = (number(first)?, number(last)?);
        if high < low || high - low > MOST_NODES as u64 {
            bail!("the range `{range}` is not usable");
        }
        for value in low..=high {
            if names.len() + tails.len() > MOST_NODES {
                bail!("more than {MOST_NODES} nodes");
            }
            for tail in &tails {
                // Leading zeros are part of the name.
                names.push(format!("{before}{value:0width$}{tail}", width = first.len()));
            }
        }
    }
    Ok(names)
}

/// The numbers of a list as `2(x3),1`.
fn expand_counts(text: &str) -> Result<Vec<usize>> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').context("a `(x` without a `)`")?),
            None => (part, "1"),
        };
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| anyhow!("`{part}` is not a number"))
        };
        let times = number(times)?;
        if times > 100_000 {
            bail!("`{part}` is too much");
        }
        counts.extend(std::iter::repeat_n(number(count)?, times));
    }
    Ok(counts)
}

/// The pods of an indexed Kubernetes job; `None` where nothing says that they belong together.
fn kubernetes(variables: Variables<'_>) -> Result<Option<Members>> {
    let (Some(index), Some(count)) = (variables("JOB_COMPLETION_INDEX"), variables("PREP_PROCESSES")) else {
        return Ok(None);
    };
    let number = |name: &str, text: &str| -> Result<usize> {
        text.parse()
            .map_err(|_| anyhow!("{name} is `{text}`, not a number"))
    };
    let (index, count) = (
        number("JOB_COMPLETION_INDEX", &index)?,
        number("PREP_PROCESSES", &count)?,
    );
    if count <= 1 {
        return Ok(None);
    }
    if index >= count || count > 100_000 {
        bail!("JOB_COMPLETION_INDEX is {index}, but PREP_PROCESSES is {count}");
    }
    let Some(pattern) = variables("PREP_HOSTS_PATTERN").filter(|pattern| pattern.contains("{}")) else {
        return Err(Hinted::new(
            "PREP_PROCESSES is set, but PREP_HOSTS_PATTERN is not, or has no `{}` for the index",
            "set it to the pods' names, as in `myjob-{}.mysvc:7171`",
        )
        .into());
    };
    let hosts = (0..count)
        .map(|index| with_port(&pattern.replace("{}", &index.to_string())))
        .collect();
    Ok(Some(Members { hosts, index }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(args: &ClusterArgs, set: &[(&str, &str)]) -> Result<Option<Members>> {
        let variables = |name: &str| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        args.members(&variables)
    }

    #[test]
    fn a_hosts_file_has_comments_ports_and_addresses() {
        let text = "# three\n a:1 # first\n\n10.0.0.2\n[::1]:5\n[fe80::2]\n";
        assert_eq!(
            parse_hosts(text),
            ["a:1", "10.0.0.2:7171", "[::1]:5", "[fe80::2]:7171"]
        );
    }

    #[test]
    fn flags_come_first_and_have_to_fit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        std::fs::write(&path, "a:1\nb:2\n").unwrap();
        let slurm = [
            ("SLURM_NTASKS", "2"),
            ("SLURM_PROCID", "0"),
            ("SLURM_JOB_NODELIST", "x[1-2]"),
        ];
        let mut args = ClusterArgs {
            hosts: Some(path.clone()),
            process: Some(1),
            ..ClusterArgs::default()
        };
        let found = members(&args, &slurm).unwrap().unwrap();
        assert_eq!(
            (found.hosts, found.index),
            (vec!["a:1".to_owned(), "b:2".into()], 1)
        );
        args.process = Some(2);
        let error = members(&args, &[]).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("0 to 1"));
        args.process = None;
        assert!(
            members(&args, &[])
                .unwrap_err()
                .to_string()
                .contains("which of them")
        );
        args = ClusterArgs {
            process: Some(0),
            ..ClusterArgs::default()
        };
        assert!(members(&args, &[]).unwrap_err().to_string().contains("no list"));
        let found = members(&args, &[(HOSTS_VARIABLE, "a:1,b")]).unwrap().unwrap();
        assert_eq!(found.hosts, ["a:1", "b:7171"]);
        assert_eq!(members(&ClusterArgs::default(), &[]).unwrap(), None);
    }

    #[test]
    fn slurm_says_who_is_where() {
        let none = ClusterArgs::default();
        let mut set = vec![
            (SECRET_VARIABLE, "s"),
            ("SLURM_NTASKS", "5"),
            ("SLURM_PROCID", "3"),
            ("SLURM_NODEID", "1"),
            ("SLURM_JOB_ID", "1251"),
            ("SLURM_JOB_NODELIST", "node[01-02],login"),
            ("SLURM_TASKS_PER_NODE", "2(x2),1"),
        ];
        let found = members(&none, &set).unwrap().unwrap();
        assert_eq!(
            found.hosts,
            [
                "node01:10016",
                "node01:10017",
                "node02:10016",
                "node02:10017",
                "login:10016"
            ]
        );
        assert_eq!(found.index, 3);
        // Elsewhere than a block distribution would have it.
        set[3] = ("SLURM_NODEID", "0");
        assert!(
            members(&none, &set)
                .unwrap_err()
                .to_string()
                .contains("block distribution")
        );
        // Without a secret: alone in the batch script, an error in a step.
        set.remove(0);
        set.remove(2);
        assert_eq!(members(&none, &set).unwrap(), None);
        set.push(("SLURM_STEP_ID", "0"));
        assert!(
            members(&none, &set)
                .unwrap_err()
                .to_string()
                .contains("task 3 of 5")
        );
        let one = [
            ("SLURM_NTASKS", "1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_JOB_NODELIST", "a"),
        ];
        assert_eq!(members(&none, &one).unwrap(), None);
    }

    #[test]
    fn lists_of_nodes_are_expanded() {
        let expand = |text| expand_nodes(text).unwrap();
        assert_eq!(expand("node[01-03,7]"), ["node01", "node02", "node03", "node7"]);
        assert_eq!(expand("a,b[1-2]c,d"), ["a", "b1c", "b2c", "d"]);
        assert_eq!(expand("r[1-2]n[0-1]"), ["r1n0", "r1n1", "r2n0", "r2n1"]);
        assert_eq!(expand("n[098-101]"), ["n098", "n099", "n100", "n101"]);
        for bad in ["a[1-2", "a]", "a[x]", "a[3-1]", "a[0-99999999]"] {
            assert!(expand_nodes(bad).is_err(), "{bad}");
        }
        assert_eq!(expand_counts("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert!(expand_counts("2(x").is_err() && expand_counts("").is_err());
    }

    #[test]
    fn an_indexed_job_needs_its_names() {
        let none = ClusterArgs::default();
        let mut set = vec![("JOB_COMPLETION_INDEX", "2")];
        assert_eq!(members(&none, &set).unwrap(), None);
        set.push(("PREP_PROCESSES", "3"));
        assert!(
            members(&none, &set)
                .unwrap_err()
                .to_string()
                .contains("PREP_HOSTS_PATTERN")
        );
        set.push(("PREP_HOSTS_PATTERN", "myjob-{}.mysvc"));
        let found = members(&none, &set).unwrap().unwrap();
        assert_eq!(
            found.hosts,
            ["myjob-0.mysvc:7171", "myjob-1.mysvc:7171", "myjob-2.mysvc:7171"]
        );
        assert_eq!(found.index, 2);
        set[1] = ("PREP_PROCESSES", "2");
        assert!(members(&none, &set).is_err());
    }

    #[test]
    fn nothing_keeps_a_cluster_that_is_not_needed_any_more() {
        use std::net::TcpListener;
        use std::sync::Arc;

        let folder = tempfile::tempdir().unwrap();
        let (hosts, secret) = (folder.path().join("hosts"), folder.path().join("secret"));
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let text: String = listeners
            .iter()
            .map(|listener| format!("{}\n", listener.local_addr().unwrap()))
            .collect();
        drop(listeners);
        std::fs::write(&hosts, text).unwrap();
        std::fs::write(&secret, "a secret of tests").unwrap();
        let member = |process| ClusterArgs {
            hosts: Some(hosts.clone()),
            process: Some(process),
            wait: None,
            secret_file: Some(secret.clone()),
        };
        let one = |process: usize| {
            let monitor = Monitor::new();
            let cluster = member(process).connect(Vec::new(), &monitor).unwrap();
            let team = crate::team::Team::of(cluster);
            team.show_to(&monitor);
            // What is told last arrives, also where this process ends at once: as the cluster goes, it waits for the others to have it.
            if process == 0 {
                team.tell(&"the end").unwrap();
            } else {
                assert_eq!(team.hear::<String>().unwrap(), "the end");
            }
            drop(team);
            let kept = Arc::downgrade(&monitor);
            drop(monitor);
            assert!(kept.upgrade().is_none(), "process {process}");
        };
        std::thread::scope(|scope| {
            let leader = scope.spawn(|| one(0));
            one(1);
            leader.join().unwrap();
        });
    }

    #[test]
    fn lists_of_hosts_and_nodes_have_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        std::fs::write(&path, "a b\n").unwrap();
        let args = ClusterArgs {
            hosts: Some(path),
            process: Some(0),
            ..ClusterArgs::default()
        };
        let error = members(&args, &[]).unwrap_err().to_string();
        assert!(error.contains("more than one host in a line"), "{error}");
        assert!(expand_nodes("a[0-99999][0-99999]").is_err());
    }

    #[test]
    fn a_secret_that_others_can_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hush\n").unwrap();
        let monitor = Monitor::new();
        for (mode, warnings) in [(0o600, 0), (0o644, 1)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret(&path, &monitor).unwrap(), b"hush");
            assert_eq!(monitor.take_notes().len(), warnings);
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(read_secret(&path, &monitor).is_err());
    }
}
