//! The list of visible devices as the driver has read it, and the report if it changed since.
//!
//! The driver reads `CUDA_VISIBLE_DEVICES` when it is initialised, and never again. A program that
//! sets the variable later selects nothing, so errors and a warning say so. If other code has
//! initialised the driver before, the value that it read is not known: the note is then the value
//! at this crate's own initialisation.

use crate::machine::Gpus;
use std::ffi::OsString;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use warpline_driver::environment::CUDA_VISIBLE_DEVICES;

static READ: OnceLock<Option<OsString>> = OnceLock::new();

/// Notes the present value. Called right before the driver is initialised.
pub(crate) fn note() {
    READ.get_or_init(|| CUDA_VISIBLE_DEVICES.value());
}

/// Returns the list that the driver has read, if the variable was set then.
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

/// Returns the devices that `list` leaves visible of `gpus`, by the rules of the CUDA programming
/// guide: the list ends at the first entry that names no GPU, or several. PyTorch's
/// `torch/cuda/__init__.py` adds that a GPU named twice hides all.
///
/// The driver may number the GPUs in another order, so a number and a UUID are not recognized as
/// the same GPU. Entries for parts of a GPU (`MIG-…`) are taken as they are.
pub(crate) fn select(list: &str, gpus: &Gpus) -> Selection {
    let mut chosen = Vec::new();
    for (at, entry) in list.split(',').map(str::trim).enumerate() {
        let which = format!("entry {} of the list, \"{entry}\",", at + 1);
        let ends = |why: String| Some(format!("{which} {why}, so the list ends before it"));
        let named = match name_of(entry, gpus) {
            Ok(named) => named,
            Err(_) if entry.is_empty() && at == 0 => {
                return Selection { count: 0, problem: Some("an empty list hides every device".into()) };
            }
            Err(why) => return Selection { count: chosen.len(), problem: ends(why) },
        };
        if let Some(before) = chosen.iter().position(|other| *other == named) {
            let problem = format!(
                "{which} names the same GPU as entry {}, and a GPU that is named twice hides every device",
                before + 1
            );
            return Selection { count: 0, problem: Some(problem) };
        }
        chosen.push(named);
    }
    Selection { count: chosen.len(), problem: None }
}

/// Returns one name for each GPU that an entry may name, or says why it names none.
fn name_of(entry: &str, gpus: &Gpus) -> Result<String, String> {
    if entry.starts_with("MIG-") {
        return Ok(entry.to_owned());
    }
    if !entry.starts_with("GPU-") {
        return match entry.parse::<i64>() {
            Ok(number) if usize::try_from(number).is_ok_and(|number| number < gpus.count) => {
                Ok(number.to_string())
            }
            Ok(_) => Err(match gpus.count {
                1 => "is the number of no GPU: this machine has 1, number 0".to_owned(),
                count => {
                    format!("is the number of no GPU: this machine has {count}, numbers 0 to {}", count - 1)
                }
            }),
            Err(_) => Err("is neither a number nor a UUID that begins with GPU- or MIG-".to_owned()),
        };
    }
    let Some(uuids) = &gpus.uuids else { return Ok(entry.to_owned()) };
    let fitting: Vec<_> = uuids.iter().filter(|uuid| uuid.starts_with(entry)).cloned().collect();
    match &fitting[..] {
        [uuid] => Ok(uuid.clone()),
        [] => Err(format!("begins the UUID of no GPU of this machine ({})", uuids.join(", "))),
        several => Err(format!("begins the UUIDs of {} GPUs ({})", several.len(), several.join(", "))),
    }
}

/// Returns what is wrong with the list that the driver has read, if the GPUs are known.
pub(crate) fn problem() -> Option<String> {
    let gpus = crate::machine::gpus();
    if gpus.count == 0 { None } else { select(&list()?, gpus).problem }
}

/// A change of the variable after the driver was initialised.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    read: Option<OsString>,
    now: Option<OsString>,
}

/// Returns the change of the variable since the driver was initialised, if it changed.
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
            (&known, "GPU-6,GPU-50b", 2, None),
            (&known, "MIG-GPU-1/2/3,0", 2, None),
            (&known, "", 0, Some("an empty list hides every device")),
            (
                &known,
                "1,7,0",
                1,
                Some(
                    "entry 2 of the list, \"7\", is the number of no GPU: this machine has 3, numbers 0 to 2, so \
                     the list ends before it",
                ),
            ),
            (&known, "0,-1,1", 1, Some("entry 2 of the list, \"-1\", is the number of no GPU")),
            (&known, "0,none", 1, Some("\"none\", is neither a number nor a UUID")),
            (&known, "0,1,0", 0, Some("\"0\", names the same GPU as entry 1, and a GPU that is named twice")),
            (&known, "GPU-50a1,GPU-50a", 0, Some("\"GPU-50a\", names the same GPU as entry 1")),
            (
                &known,
                "0,GPU-7",
                1,
                Some("begins the UUID of no GPU of this machine (GPU-50a1, GPU-50b2, GPU-6dc3)"),
            ),
            (&known, "GPU-50", 0, Some("begins the UUIDs of 2 GPUs (GPU-50a1, GPU-50b2), so the list ends")),
            (&counted, "GPU-7,1", 2, None),
            (&counted, "0,GPU-7,GPU-7", 0, Some("names the same GPU as entry 2")),
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
