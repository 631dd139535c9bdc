//! Device names: `cpu`, `cpu:1`, `cuda:0`.

use crate::error::{Error, ErrorKind};
use std::fmt;
use std::str::FromStr;

/// The name of a device: a backend and an ordinal. As text, it is `cpu:1` or `cuda:0`; `cpu` stands
/// for `cpu:0`, and `cuda` for `cuda:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceId {
    /// A CPU device. `cpu:0` is the host itself. `cpu:1` and later ones are virtual devices that
    /// stand in for GPUs.
    Cpu(u32),
    /// A CUDA device.
    Cuda(u32),
    /// A device of a driver that is not part of Warpline.
    Other {
        /// The name of its backend, as errors show it: `tpu` for `tpu:0`.
        /// [`FromStr`](std::str::FromStr) never returns such a device.
        backend: &'static str,
        /// The number of the device in its backend.
        ordinal: u32,
    },
}

impl DeviceId {
    /// Returns the number after the colon.
    pub const fn ordinal(self) -> u32 {
        match self {
            DeviceId::Cpu(n) | DeviceId::Cuda(n) => n,
            DeviceId::Other { ordinal, .. } => ordinal,
        }
    }

    /// Returns the name before the colon.
    ///
    /// Devices of one backend in a runtime copy to each other, wait for each other's timelines, and
    /// use each other's page-locked memory. A driver must support this for all devices to which it
    /// gives the same backend name.
    pub const fn backend(self) -> &'static str {
        match self {
            DeviceId::Cpu(_) => "cpu",
            DeviceId::Cuda(_) => "cuda",
            DeviceId::Other { backend, .. } => backend,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend(), self.ordinal())
    }
}

impl FromStr for DeviceId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            let misses_colon = ["cpu", "cuda"].into_iter().find_map(|backend| {
                let number = text.strip_prefix(backend)?;
                (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
                    .then(|| format!("write \"{backend}:{number}\""))
            });
            let remedy = misses_colon
                .unwrap_or_else(|| "expected \"cpu\", \"cpu:N\", \"cuda\" or \"cuda:N\"".to_owned());
            Error::new(ErrorKind::InvalidName, format!("\"{text}\" is not a device; {remedy}"))
        };
        let (backend, ordinal) = match text.split_once(':') {
            // `parse` would also take "+1".
            Some((backend, n)) if n.bytes().all(|b| b.is_ascii_digit()) => {
                (backend, n.parse().map_err(|_| invalid())?)
            }
            Some(_) => return Err(invalid()),
            None => (text, 0),
        };
        match backend {
            "cpu" => Ok(DeviceId::Cpu(ordinal)),
            "cuda" => Ok(DeviceId::Cuda(ordinal)),
            _ => Err(invalid()),
        }
    }
}
