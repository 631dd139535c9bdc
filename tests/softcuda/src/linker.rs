//! Links (`CUlinkState`), which make an image of PTX texts.
//!
//! Cubins hold machine code, which this driver does not run. The image of a link is therefore PTX
//! text. Programs may only load it.

use crate::abi::CUlinkState;
use crate::errors::{Code, Outcome, refuse};
use crate::jit_log::JitLog;
use crate::module;
use crate::slab::Slab;
use crate::texts::{self, Text, Unjoined};
use parking_lot::Mutex;
use std::ffi::CString;

/// The state of a link. A destroyed one is empty.
#[derive(Default)]
struct State {
    texts: Vec<Text>,
    image: Option<CString>,
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
        if self.image.is_some() {
            refuse!(INVALID_VALUE, "the link is complete, so {name} cannot be added");
        }
        if kind != PTX {
            refuse!(NOT_SUPPORTED, "{name} is of kind {kind}, and this driver links PTX alone, kind {PTX}");
        }
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let (text, _) = module::checked(bytes)?;
        self.texts.push(Text { name: name.to_owned(), text: text.to_owned() });
        Ok(())
    }

    fn complete(&mut self) -> Outcome<(*const u8, usize)> {
        if self.texts.is_empty() {
            refuse!(INVALID_VALUE, "the link has no input");
        }
        let joined = match texts::join(&self.texts) {
            Ok(joined) => joined,
            Err(Unjoined::Invalid(why)) => refuse!(INVALID_PTX, "{why}"),
            Err(Unjoined::Unsupported(why)) => refuse!(NOT_SUPPORTED, "{why}"),
        };
        let image = self.image.insert(CString::new(joined).map_err(|_| Code::INVALID_PTX)?);
        Ok((image.as_ptr().cast(), image.as_bytes_with_nul().len()))
    }
}

/// Ends a link, and returns its image with the size in bytes. The image lives until the link is
/// destroyed.
pub(crate) fn complete(handle: CUlinkState) -> Outcome<(*const u8, usize)> {
    let mut link = known(handle)?.lock();
    let completed = link.complete();
    link.log.keep(completed)
}

/// Destroys a link with its image.
pub(crate) fn destroy(handle: CUlinkState) -> Outcome {
    let link = known(handle)?;
    if LINKS.revoke(handle.0).is_some() {
        *link.lock() = State::default();
    }
    Ok(())
}
