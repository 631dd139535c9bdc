//! The folders that the environment names for NVRTC: of the library, of headers, and for the PTX
//! that it makes.

use std::path::{Path, PathBuf};
use warpline_driver::environment::{WARPLINE_KEEP_PTX, WARPLINE_NVRTC_INCLUDE};

/// Returns the libraries in the folder that `WARPLINE_NVRTC` names, the newest first.
///
/// # Errors
/// If there is none.
pub(super) fn libraries_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let version = |path: &PathBuf| {
        let numbers = path.file_name()?.to_str()?.strip_prefix("libnvrtc.so.")?;
        numbers.split('.').map(|number| number.parse().ok()).collect::<Option<Vec<u32>>>()
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> = entries.filter_map(|path| Some((version(&path)?, path))).collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    if found.is_empty() {
        return Err(format!(
            "the folder {}, which WARPLINE_NVRTC names, has no libnvrtc.so.12 or .13; name the folder that has it, \
             or the file",
            folder.display()
        ));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Returns the folders of headers that `WARPLINE_NVRTC_INCLUDE` lists.
///
/// # Errors
/// If one of them is no folder.
pub(super) fn of_headers() -> Result<Vec<PathBuf>, String> {
    let list = WARPLINE_NVRTC_INCLUDE.value().unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect();
    match folders.iter().find(|folder| !folder.is_dir()) {
        None => Ok(folders),
        Some(other) => Err(format!(
            "{WARPLINE_NVRTC_INCLUDE} is \"{}\", and {} is no folder; list folders with \":\" between",
            list.display(),
            other.display()
        )),
    }
}

/// Writes the PTX of kernel `name` to the folder that `WARPLINE_KEEP_PTX` names, if there is one.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn keep(name: &str, ptx: &str) -> Result<(), String> {
    let Some(folder) = WARPLINE_KEEP_PTX.path() else { return Ok(()) };
    let file = folder.join(format!("{name}.ptx"));
    std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, ptx)).map_err(|error| {
        format!(
            "{WARPLINE_KEEP_PTX} is \"{}\", and {} cannot be written: {error}; name another folder",
            folder.display(),
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_folder_are_tried_from_the_newest_on() {
        let folder = std::env::temp_dir().join(format!("warpline-nvrtc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let why = libraries_in(&folder).unwrap_err();
        assert!(why.starts_with(&format!("the folder {}, which", folder.display())), "{why}");
        let names = [
            "libnvrtc.so",
            "libnvrtc-builtins.so.13.5",
            "libnvrtc.so.12",
            "libnvrtc.so.9.2",
            "libnvrtc.so.12.9.86",
            "libnvrtc.so.13",
            "libnvrtc.so.13.bak",
        ];
        for name in names {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found = libraries_in(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = ["libnvrtc.so.13", "libnvrtc.so.12.9.86", "libnvrtc.so.12", "libnvrtc.so.9.2"];
        assert_eq!(found.unwrap(), expected.map(|name| folder.join(name)));
    }
}
