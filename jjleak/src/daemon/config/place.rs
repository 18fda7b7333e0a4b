//! Where the daemon listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::values::Written;

/// Where the daemon listens: `unix:PATH`, `tcp:ADDRESS:PORT`, or `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket, which who may open it is the file system's to say.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
    /// Nowhere.
    Off,
}

impl Place {
    /// Whether clients from other hosts can come.
    #[must_use]
    pub fn is_open_to_others(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().is_loopback())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Tcp(address) => write!(formatter, "tcp:{address}"),
            Self::Off => formatter.write_str("off"),
        }
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let example = "\"unix:/PATH\", \"tcp:127.0.0.1:PORT\", \"tcp:[::1]:PORT\" or \"off\"";
        let text = Written::read(from, &format!("a place to listen: {example}"))?.to_string();
        let place = match text.split_once(':') {
            Some(("unix", path)) if path.starts_with('/') => Some(Self::Unix(path.into())),
            Some(("tcp", address)) => address.parse().ok().map(Self::Tcp),
            _ => (text == "off").then_some(Self::Off),
        };
        let allowed = || D::Error::custom(format!("`{text}` is no place to listen: {example}"));
        place.ok_or_else(allowed)
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.collect_str(self)
    }
}
