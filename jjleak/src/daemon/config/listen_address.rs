//! Address on which the daemon listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::values::Written;

/// Address on which the daemon listens: `unix:PATH`, `tcp:ADDRESS:PORT`, or `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A Unix socket; file permissions control access.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
    /// The server is off.
    Off,
}

impl ListenAddress {
    /// Returns true if other hosts can connect.
    #[must_use]
    pub fn is_reachable_remotely(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().is_loopback())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Tcp(address) => write!(formatter, "tcp:{address}"),
            Self::Off => formatter.write_str("off"),
        }
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let example = "\"unix:/PATH\", \"tcp:127.0.0.1:PORT\", \"tcp:[::1]:PORT\" or \"off\"";
        let text = Written::read(from, &format!("an address to listen on: {example}"))?.to_string();
        let place = match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => Some(Self::Unix(path.into())),
            Some(("tcp", address)) => address.parse().ok().map(Self::Tcp),
            _ => (text == "off").then_some(Self::Off),
        };
        let allowed = || D::Error::custom(format!("`{text}` is not an address to listen on: {example}"));
        place.ok_or_else(allowed)
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.collect_str(self)
    }
}
