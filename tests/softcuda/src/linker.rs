//! Links (`CUlinkState`), which make an image of PTX texts.
//!
//! Cubins hold machine code, which this driver does not run. The image of a link is therefore PTX
//! text. Programs may only load it.

use crate::abi::CUlinkState;
use crate::errors::{Outcome, refuse};
use crate::jit_log::JitLog;
use crate::module;
use crate::slab::Slab;
use parking_lot::Mutex;
use std::ffi::CString;

/// The state of a link. A destroyed one is empty.
#[derive(Default)]
struct State {
    text: Option<CString>,
    is_complete: bool,
    log: JitLog,
}

static LINKS: Slab<Mutex<State>> = Slab::new(13);

/// Begins a link, whose errors go into `log`.
pub(crate) fn create(log: JitLog) -> CUlinkState {
    let (index, _) = LINKS.take(|_| Mutex::new(State { log, ..State::default() }));
    CUlinkState(LINKS.publish(index))
}

fn known(handle: CUlinkState) -> Outcome<&'static Mutex<State>> {
    match LINKS.get(handle.0) {
        Some(link) => Ok(link),
        None => refuse!(INVALID_HANDLE, "the link is {}", LINKS.what_is(handle.0)),
    }
}

/// `CU_JIT_INPUT_PTX`
const PTX: u32 = 1;

/// Adds an input of a `CUjitInputType`. Only PTX can be linked.
pub(crate) fn add(handle: CUlinkState, kind: u32, bytes: &[u8], name: &str) -> Outcome {
    let mut link = known(handle)?.lock();
    let added = link.add(kind, bytes, name);
    link.log.keep(added)
}

impl State {
    fn add(&mut self, kind: u32, bytes: &[u8], name: &str) -> Outcome {
        if self.is_complete {
            refuse!(INVALID_VALUE, "the link is complete, so {name} cannot be added");
        }
        if kind != PTX {
            refuse!(NOT_SUPPORTED, "{name} is of kind {kind}, and this driver links PTX alone, kind {PTX}");
        }
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        module::checked(text)?;
        if self.text.is_some() {
            refuse!(NOT_SUPPORTED, "{name} is a second text, and this driver links one");
        }
        self.text = CString::new(text).ok();
        Ok(())
    }
}

/// Ends a link, and returns its image with the size in bytes. The image lives until the link is
/// destroyed.
pub(crate) fn complete(handle: CUlinkState) -> Outcome<(*const u8, usize)> {
    let mut link = known(handle)?.lock();
    link.is_complete = true;
    match &link.text {
        Some(text) => Ok((text.as_ptr().cast(), text.as_bytes_with_nul().len())),
        None => refuse!(INVALID_VALUE, "the link has no input"),
    }
}

/// Destroys a link with its image.
pub(crate) fn destroy(handle: CUlinkState) -> Outcome {
    let link = known(handle)?;
    if LINKS.revoke(handle.0).is_some() {
        *link.lock() = State::default();
    }
    Ok(())
}
