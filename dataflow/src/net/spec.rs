//! Who belongs to a cluster.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;

/// Says something in passing, for instance that a stranger was refused.
pub(crate) type Warn = Arc<dyn Fn(String) + Send + Sync>;

/// Which processes form a cluster, and which of them this one is.
///
/// Every process has to be given the same hosts in the same order, the same secret, and the same arguments.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClusterSpec {
    pub(crate) hosts: Vec<String>,
    pub(crate) index: usize,
    pub(crate) secret: Vec<u8>,
    pub(crate) version: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) wait: Duration,
    pub(crate) warn: Warn,
}

impl std::fmt::Debug for ClusterSpec {
    /// Shows all but the secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ClusterSpec")
            .field("hosts", &self.hosts)
            .field("index", &self.index)
            .field("version", &self.version)
            .field("arguments", &self.arguments)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl ClusterSpec {
    /// The cluster of these `host:port`s (`[address]:port` for IPv6), of which this process is number `index`, from 0.
    pub fn new(
        hosts: impl IntoIterator<Item = impl Into<String>>,
        index: usize,
        secret: impl Into<Vec<u8>>,
    ) -> Self {
        Self {
            hosts: hosts.into_iter().map(Into::into).collect(),
            index,
            secret: secret.into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            arguments: Vec::new(),
            wait: Duration::from_secs(15),
            warn: Arc::new(|text| tracing::warn!("{text}")),
        }
    }

    /// What has to be the same program everywhere. Default: this crate's version.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// What the processes were asked to do: a list that has to be equal everywhere, up to 1 MiB. It is shown in errors, so it must
    /// not hold secrets. Default: none.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// How long the others may take to come up. Default 15 seconds.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Where to say that a connection was refused. Default: `tracing`.
    pub fn warn(mut self, warn: impl Fn(String) + Send + Sync + 'static) -> Self {
        self.warn = Arc::new(warn);
        self
    }

    /// Says what is wrong with the specification.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |reason: String| Err(Error::Cluster(reason));
        let count = self.hosts.len();
        if count == 0 {
            return wrong("the cluster has no hosts".into());
        }
        if self.index >= count {
            return wrong(format!(
                "there is no process {}: the cluster has {count} hosts, so processes are 0 to {}",
                self.index,
                count - 1
            ));
        }
        if self.secret.is_empty() {
            return wrong("the cluster's secret is empty".into());
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let port = host.rsplit_once(':').filter(|(name, _)| {
                !name.is_empty() && (!name.contains(':') || (name.starts_with('[') && name.ends_with(']')))
            });
            if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_none() {
                return wrong(format!(
                    "host {index} is `{host}`, not `name:port`, `address:port` or `[address]:port`"
                ));
            }
            if let Some(first) = self.hosts[..index].iter().position(|other| other == host) {
                return wrong(format!("hosts {first} and {index} are the same, `{host}`"));
            }
        }
        Ok(())
    }

    /// `process 2 (node2:7171)`.
    pub(crate) fn name(&self, process: usize) -> String {
        let host = self.hosts.get(process).map_or("?", String::as_str);
        format!("process {process} ({host})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hosts: &[&str], index: usize, secret: &str) -> String {
        let spec = ClusterSpec::new(hosts.iter().copied(), index, secret);
        spec.check()
            .err()
            .map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn what_cannot_be_a_cluster_is_told() {
        assert_eq!(check(&["a:1", "10.0.0.1:2", "[::1]:3"], 2, "s"), "");
        assert!(check(&[], 0, "s").contains("no hosts"));
        assert!(check(&["a:1"], 1, "s").contains("processes are 0 to 0"));
        assert!(check(&["a:1"], 0, "").contains("secret is empty"));
        assert!(check(&["a:1", "a:1"], 0, "s").contains("0 and 1 are the same"));
        for host in ["a", "a:", "a:x", ":1", "a:65536", "::1:3", "fe80::1"] {
            assert!(
                check(&["b:1", host], 0, "s").contains(&format!("`{host}`")),
                "{host}"
            );
        }
    }

    #[test]
    fn the_secret_is_not_shown() {
        let spec = ClusterSpec::new(["a:1"], 0, "hush-hush");
        assert!(!format!("{spec:?}").contains("hush"));
    }
}
