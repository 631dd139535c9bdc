//! The list of visible devices as CUDA has read it, and the report if it changed since.
//!
//! CUDA reads `CUDA_VISIBLE_DEVICES` when it is initialised, and never again. A program that
//! sets the variable later selects nothing, so errors and a warning say so. If other code has
//! initialised CUDA before, the value that it read is not known: the note is then the value
//! at this crate's own initialisation.

use crate::machine::Gpus;
use std::ffi::OsString;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use warpline_driver::environment::CUDA_VISIBLE_DEVICES;

static READ: OnceLock<Option<OsString>> = OnceLock::new();

/// Notes the present value. Called right before CUDA is initialised.
pub(crate) fn note() {
    READ.get_or_init(|| CUDA_VISIBLE_DEVICES.value());
}

/// Returns the list that CUDA has read, if the variable was set then.
pub(crate) fn list() -> Option<String> {
    READ.get()?.as_ref().map(|list| list.to_string_lossy().into_owned())
}

/// The devices that a list leaves visible.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) count: usize,
    /// The reason why they are fewer than the list has entries.
    pub(crate) problem: Option<String>,
}

/// Returns the devices that `list` leaves visible of `gpus`. By the CUDA programming guide, the
/// list ends before the first entry that names no GPU, or several. PyTorch's
/// `torch/cuda/__init__.py` adds what CUDA does besides: a GPU that is named twice hides all,
/// text behind a number is ignored, and a list has either numbers or UUIDs. Entries for parts of a
/// GPU (`MIG-…`) are taken as they are.
pub(crate) fn select(list: &str, gpus: &Gpus) -> Selection {
    let entries: Vec<&str> = list.split(',').map(str::trim).collect();
    if entries == [""] {
        return Selection { count: 0, problem: Some("an empty list hides every device".into()) };
    }
    let has_numbers = !is_uuid(entries[0]);
    let which = |at: usize| format!("entry {} of the list, \"{}\",", at + 1, entries[at]);
    let (mut named, mut end) = (Vec::new(), None);
    for (at, entry) in entries.iter().enumerate() {
        let name = if has_numbers == is_uuid(entry) {
            Err("is a UUID behind numbers, or the reverse".to_owned())
        } else if has_numbers {
            number_of(entry)
        } else {
            uuid_of(entry, gpus)
        };
        let name = match name {
            Ok(name) => name,
            Err(why) => {
                end = end.or(Some((at, why)));
                break;
            }
        };
        if let Some(before) = named.iter().position(|other| *other == name) {
            let problem = format!(
                "{} names the same GPU as entry {}, and a GPU that is named twice hides every device",
                which(at),
                before + 1
            );
            return Selection { count: 0, problem: Some(problem) };
        }
        // Numbers behind it are looked at for repetitions alone.
        if let Name::Number(number) = name
            && number >= gpus.count
            && end.is_none()
        {
            let last = gpus.count.saturating_sub(1);
            end = Some((at, format!("is the number of no GPU: the last of this machine is {last}")));
        }
        named.push(name);
    }
    match end {
        Some((at, why)) => {
            let problem = format!("{} {why}, so the list ends before it", which(at));
            Selection { count: at, problem: Some(problem) }
        }
        None => Selection { count: named.len(), problem: None },
    }
}

#[derive(PartialEq, Eq)]
enum Name {
    Number(usize),
    Uuid(String),
}

fn is_uuid(entry: &str) -> bool {
    entry.starts_with("GPU-") || entry.starts_with("MIG-")
}

fn number_of(entry: &str) -> Result<Name, String> {
    let digits = entry.find(|char: char| !char.is_ascii_digit()).unwrap_or(entry.len());
    match entry[..digits].parse() {
        Ok(number) => Ok(Name::Number(number)),
        Err(_) => Err("is neither the number of a GPU nor a UUID that begins with GPU- or MIG-".to_owned()),
    }
}

fn uuid_of(entry: &str, gpus: &Gpus) -> Result<Name, String> {
    let as_it_is = || Ok(Name::Uuid(entry.to_owned()));
    let Some(uuids) = gpus.uuids.as_ref().filter(|_| entry.starts_with("GPU-")) else { return as_it_is() };
    let fitting: Vec<_> = uuids.iter().filter(|uuid| uuid.starts_with(entry)).cloned().collect();
    match &fitting[..] {
        [uuid] => Ok(Name::Uuid(uuid.clone())),
        [] => Err(format!("begins the UUID of no GPU of this machine ({})", uuids.join(", "))),
        several => Err(format!("begins the UUIDs of {} GPUs ({})", several.len(), several.join(", "))),
    }
}

/// Returns what is wrong with the list that CUDA has read and of which it shows `count`
/// devices, if the GPUs are known. A reason that would leave another number of devices is not that
/// of CUDA.
pub(crate) fn problem(count: usize) -> Option<String> {
    let gpus = crate::machine::gpus();
    if gpus.count == 0 {
        return None;
    }
    let selection = select(&list()?, gpus);
    if selection.count == count { selection.problem } else { None }
}

/// A change of the variable after CUDA was initialised.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    read: Option<OsString>,
    now: Option<OsString>,
}

/// Returns the change of the variable since CUDA was initialised, if it changed.
pub(crate) fn change() -> Option<Change> {
    let (read, now) = (READ.get()?.clone(), CUDA_VISIBLE_DEVICES.value());
    (read != now).then_some(Change { read, now })
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: &Option<OsString>| match value {
            Some(list) => format!("\"{}\"", list.display()),
            None => "not set".to_owned(),
        };
        write!(
            f,
            "{CUDA_VISIBLE_DEVICES} is {} now and was {} when the NVIDIA driver was initialised, which \
             reads it only then; set it before the first use of a CUDA device, or on the command line",
            value(&self.now),
            value(&self.read)
        )
    }
}

/// Warns once for each process if the variable has changed.
pub(crate) fn warn_of_change() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if let Some(change) = change()
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        crate::report::visible_devices_changed(&change.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_at_what_names_no_gpu_and_the_reason_says_which() {
        let uuids = ["GPU-50a1", "GPU-50b2", "GPU-6dc3"].map(String::from).to_vec();
        let known = Gpus { count: 3, uuids: Some(uuids) };
        let counted = Gpus { count: 3, uuids: None };
        for (gpus, list, count, problem) in [
            (&known, "2,0", 2, None),
            (&known, " 1 , 2 ", 2, None),
            (&known, "1gpu2,2ampere", 2, None),
            (&known, "GPU-6,GPU-50b", 2, None),
            (&known, "MIG-GPU-1/2/3,GPU-6", 2, None),
            (&known, "", 0, Some("an empty list hides every device")),
            (
                &known,
                "1,7,0",
                1,
                Some(
                    "entry 2 of the list, \"7\", is the number of no GPU: the last of this machine is 2, so the list \
                     ends before it",
                ),
            ),
            (&known, "0,-1,1", 1, Some("entry 2 of the list, \"-1\", is neither the number of a GPU")),
            (&known, "0,none", 1, Some("\"none\", is neither the number of a GPU nor a UUID")),
            (&known, "0,GPU-6", 1, Some("\"GPU-6\", is a UUID behind numbers, or the reverse")),
            (&known, "0,1,0", 0, Some("\"0\", names the same GPU as entry 1, and a GPU that is named twice")),
            (&known, "0,7,0", 0, Some("entry 3 of the list, \"0\", names the same GPU as entry 1")),
            (&known, "GPU-50a1,GPU-50a", 0, Some("\"GPU-50a\", names the same GPU as entry 1")),
            (
                &known,
                "GPU-6,GPU-7",
                1,
                Some("begins the UUID of no GPU of this machine (GPU-50a1, GPU-50b2, GPU-6dc3)"),
            ),
            (&known, "GPU-50", 0, Some("begins the UUIDs of 2 GPUs (GPU-50a1, GPU-50b2), so the list ends")),
            (&counted, "GPU-7,GPU-8", 2, None),
            (&counted, "GPU-7,GPU-7", 0, Some("names the same GPU as entry 1")),
        ] {
            let selection = select(list, gpus);
            assert_eq!(selection.count, count, "{list}");
            match (problem, selection.problem) {
                (Some(part), Some(text)) => assert!(text.contains(part), "{text}"),
                (expected, text) => assert_eq!(text.as_deref(), expected, "{list}"),
            }
        }
    }
}
