//! The search for cuBLAS, done once per process under the names of both major versions in use.
//!
//! A library that is found but does not fit is no error. A library that `WARPLINE_CUBLAS` names and
//! that cannot be loaded is an error, since the user has asked for it.
// Decision: docs/decisions/0040-cublas-is-looked-up-by-hand.md

use super::api::Api;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use warpline_runtime::environment::{self, WARPLINE_CUBLAS};
use warpline_runtime::kernel::LibraryDevice;

const NAMES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];
/// The major versions that are known to have these entry points.
const MAJORS: std::ops::RangeInclusive<i32> = 12..=13;

/// The result of the search.
pub(super) enum Found {
    Library(Api),
    /// No library: the kernels of this crate run.
    Nothing {
        because: &'static str,
    },
    /// The library that `WARPLINE_CUBLAS` names cannot be used, for this reason.
    Refused(String),
}

/// Records that the search has found no library and that this has not been reported yet.
static NEWS: AtomicBool = AtomicBool::new(false);

/// Returns `true` once after the search has found no library.
pub(super) fn is_news() -> bool {
    NEWS.load(Ordering::Relaxed) && NEWS.swap(false, Ordering::Relaxed)
}

static FOUND: OnceLock<Found> = OnceLock::new();

/// Returns the library of this process. All its devices have one driver.
pub(super) fn found(device: LibraryDevice) -> &'static Found {
    FOUND.get_or_init(|| look(WARPLINE_CUBLAS.path(), device))
}

/// Returns the outcome of the search, if there was one.
pub(super) fn known() -> Option<&'static Found> {
    FOUND.get()
}

fn look(named: Option<PathBuf>, device: LibraryDevice) -> Found {
    match named {
        Some(path) if path.as_os_str() == "off" => Found::Nothing { because: "WARPLINE_CUBLAS is off" },
        Some(path) => Api::load(&path).map_or_else(
            |error| {
                let path = path.display();
                Found::Refused(format!(
                    "{WARPLINE_CUBLAS} is {path}, which cannot be loaded as cuBLAS: {error}; set it \
                     to the library's path, to \"off\" to use no cuBLAS, or unset it to search \
                     the usual places"
                ))
            },
            Found::Library,
        ),
        None if device.is_software => {
            Found::Nothing { because: "the software CUDA driver does not run a library's kernels" }
        }
        None => search(candidates(), device.driver_version),
    }
}

fn search(candidates: impl Iterator<Item = PathBuf>, driver_version: i32) -> Found {
    let mut tried = Vec::new();
    for path in candidates {
        match Api::load(&path) {
            Ok(api) if fits(api.major, driver_version) => return Found::Library(api),
            Ok(api) => tried.push(format!("{} is version {}", path.display(), api.major)),
            Err(error) => tried.push(error),
        }
    }
    NEWS.store(true, Ordering::Relaxed);
    let because = format!(
        "no cuBLAS of CUDA 12 or 13 that fits the driver was found: {}; set {WARPLINE_CUBLAS} to its path",
        tried.join("; ")
    );
    // Leaks once per process.
    Found::Nothing { because: because.leak() }
}

/// Returns the paths to search, in order.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let in_homes = environment::toolkits().flat_map(|home| NAMES.map(|name| home.join("lib64").join(name)));
    NAMES.map(PathBuf::from).into_iter().chain(in_homes)
}

/// Returns whether a library of this major version runs with a driver for this version of CUDA, 0
/// if unknown.
///
/// A driver supports all minor versions of its major version, and all earlier versions.
fn fits(major: i32, driver_version: i32) -> bool {
    MAJORS.contains(&major) && (driver_version == 0 || major <= driver_version / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_newer_than_the_driver_or_of_an_unknown_major_version_does_not_fit() {
        assert!(fits(12, 12_020) && fits(12, 13_000) && fits(13, 13_010) && fits(13, 0));
        assert!(!fits(13, 12_090) && !fits(11, 12_090) && !fits(14, 14_000));
    }

    #[test]
    fn that_there_is_none_is_news_once_and_says_what_was_tried() {
        let places = ["/nowhere/libcublas.so.13", "/nowhere/libcublas.so.12"].map(PathBuf::from);
        static KEPT: OnceLock<&str> = OnceLock::new();
        let Found::Nothing { because } = search(places.into_iter(), 12_040) else { panic!("it was found") };
        KEPT.set(because).unwrap();
        assert!(
            because.contains("/nowhere/libcublas.so.13") && because.contains("WARPLINE_CUBLAS"),
            "{because}"
        );
        assert_eq!([is_news(), is_news()], [true, false]);
    }

    #[test]
    fn what_is_named_counts_alone() {
        let device = |is_software| LibraryDevice { ordinal: 0, driver_version: 12_040, is_software };
        let because = |found| match found {
            Found::Nothing { because } => because,
            Found::Library(_) | Found::Refused(_) => panic!("something was found"),
        };
        assert_eq!(because(look(Some("off".into()), device(false))), "WARPLINE_CUBLAS is off");
        assert!(because(look(None, device(true))).contains("software CUDA driver"));
        let Found::Refused(why) = look(Some("/nowhere/libcublas.so.12".into()), device(true)) else {
            panic!("it was loaded")
        };
        assert!(
            why.starts_with("WARPLINE_CUBLAS is /nowhere/libcublas.so.12, which cannot be loaded"),
            "{why}"
        );
    }
}
