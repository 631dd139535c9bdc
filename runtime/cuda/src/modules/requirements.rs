//! Chooses the PTX text for a device, and explains refusals of code too new for CUDA or the device.
//!
//! CUDA itself decides, and what it refuses is explained with the versions.

use super::functions::Function;
use crate::api::{Answer, Failed, driver_version, opened};
use crate::context::{Context, attribute};
use crate::versions::cuda_version;
use std::borrow::Cow;
use std::ffi::c_int;
use warpline_driver::DriverFailure;
use warpline_driver::kernel::{LaunchConfig, Target, head};

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`
const MAX_THREADS: c_int = 0;
/// The first compute capability with clusters of blocks (CUDA C++ Programming Guide, "Thread Block
/// Clusters").
const CLUSTERS: (u32, u32) = (9, 0);

/// The major number of Pascal's compute capabilities.
const PASCAL: u32 = 6;

/// Returns the compute capability of a device, (9, 0) for Hopper.
pub(crate) fn capability(context: &Context) -> Answer<(u32, u32)> {
    let number = |which| context.attribute(which);
    Ok((number(attribute::CAPABILITY_MAJOR)? as u32, number(attribute::CAPABILITY_MINOR)? as u32))
}

/// Chooses the text for the newest target that a device runs.
///
/// If the device runs none of them, or none states its target, the choice is the first text, and
/// CUDA reports what is wrong with it.
pub(crate) fn choose(
    texts: &'static [&'static str],
    capability: (u32, u32),
) -> Result<&'static str, &'static str> {
    let targets = texts.iter().filter_map(|text| Some((head(text)?.target, *text)));
    let runs = targets.filter(|(target, _)| target.runs_on(capability)).max_by_key(|(target, _)| *target);
    runs.map(|(_, text)| text).or(texts.first().copied()).ok_or("it has no PTX text")
}

/// Returns a text as a device loads it. On Pascal, text that also assembles for `sm_60` has that
/// target in place of a newer one.
///
/// Newer devices never get this form: CUDA would compile it by the rules of GPUs whose warps
/// run in lockstep.
pub(crate) fn as_loaded(text: &str, from_sm_60: bool, capability: (u32, u32)) -> Cow<'_, str> {
    match head(text) {
        Some(head) if from_sm_60 && capability.0 == PASCAL && !head.target.runs_on(capability) => {
            text.replacen(&format!("\n.target {}", head.target), "\n.target sm_60", 1).into()
        }
        _ => text.into(),
    }
}

/// Puts the reason in front of `refused`, CUDA's answer to loading `ptx`, if CUDA or
/// the device is too old for it.
pub(crate) fn explain(context: &Context, ptx: &str, refused: DriverFailure) -> DriverFailure {
    let (Some(head), Ok(capability)) = (head(ptx), capability(context)) else { return refused };
    let reason = too_new_for_the_driver(head.version, driver_version())
        .or_else(|| too_new_for_the_device(head.target, capability, context));
    let Some(reason) = reason else { return refused };
    let text = format!("{reason}: {refused}");
    refused.with_text(text)
}

fn too_new_for_the_driver((major, minor): (u32, u32), driver: c_int) -> Option<String> {
    let needed = first_cuda_with((major, minor));
    if driver == 0 || needed <= driver {
        return None;
    }
    let (needed, driver) = (cuda_version(needed), cuda_version(driver));
    Some(format!(
        "its PTX is of version {major}.{minor}, which needs a driver for CUDA {needed} or newer, and this one is for CUDA \
         {driver}; update the driver, or compile it with CUDA {driver} or older"
    ))
}

/// Returns the CUDA version whose drivers are the first to load a version of PTX, 12080 for 8.7; 0
/// before CUDA 11.
///
/// Source: PTX ISA, "Release Notes", "PTX ISA Release History", as in `cuda.bindings.utils` of
/// cuda-python. CUDA 12.6 brought no version of PTX.
fn first_cuda_with(version: (u32, u32)) -> c_int {
    match version {
        (..=6, _) => 0,
        (8, minor @ 6..) => 12_010 + 10 * minor as c_int,
        (major, minor) => 1000 * (major as c_int + 4) + 10 * minor as c_int,
    }
}

fn too_new_for_the_device(target: Target, capability: (u32, u32), context: &Context) -> Option<String> {
    let (major, minor) = capability;
    (!target.runs_on(capability)).then(|| {
        format!(
            "its PTX is for {target}, and cuda:{} ({}) has compute capability {major}.{minor}; compile it for \
             compute_{major}{minor} or older",
            context.ordinal, context.name
        )
    })
}

/// Explains why CUDA refused a launch, if the device has no clusters or the kernel takes only
/// smaller blocks.
#[cold]
pub(crate) fn explain_launch(
    context: &Context,
    config: &LaunchConfig,
    function: Function,
    failed: Failed,
) -> Option<DriverFailure> {
    if failed.is_fault() || failed.code == Failed::OUT_OF_MEMORY {
        return None;
    }
    let threads: u32 = config.block.iter().product();
    if let Some(most) = max_threads(function).filter(|most| threads > *most) {
        return Some(failed.explained(format!(
            "blocks have {threads} threads, and its device code allows at most {most} on cuda:{}; \
             launch smaller blocks: {failed}",
            context.ordinal
        )));
    }
    config.cluster?;
    let (major, minor) = capability(context).ok().filter(|capability| *capability < CLUSTERS)?;
    Some(failed.explained(format!(
        "clusters of blocks need compute capability {}.{}, and cuda:{} ({}) has {major}.{minor}; launch it without clusters",
        CLUSTERS.0, CLUSTERS.1, context.ordinal, context.name
    )))
}

/// Returns how many threads a block of this function may have: what its code declares with
/// `.maxntid`, or what its registers allow.
fn max_threads(function: Function) -> Option<u32> {
    let mut most = 0;
    // SAFETY: cuFuncGetAttribute takes a live function and writes an int.
    unsafe { opened().cuFuncGetAttribute(&raw mut most, MAX_THREADS, function.raw) }.ok()?;
    Some(most as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_ptx_come_with_versions_of_cuda() {
        let first = [(6, 5), (7, 0), (7, 8), (8, 0), (8, 5), (8, 6), (8, 7), (8, 8), (9, 0), (9, 1)];
        let expected = [0, 11_000, 11_080, 12_000, 12_050, 12_070, 12_080, 12_090, 13_000, 13_010];
        assert_eq!(first.map(first_cuda_with), expected);
        assert_eq!(too_new_for_the_driver((8, 0), 12_000), None);
        assert_eq!(too_new_for_the_driver((9, 1), 0), None, "a driver that does not say");
    }

    #[test]
    fn a_device_gets_the_newest_text_that_it_runs() {
        const TEXTS: [&str; 4] = [
            ".version 8.0\n.target sm_60\n",
            ".version 8.0\n.target sm_90a\n",
            ".version 8.0\n.target sm_70\n",
            "no PTX",
        ];
        let chosen = [(6, 0), (6, 1), (7, 0), (8, 9), (9, 0), (10, 0)].map(|of| choose(&TEXTS, of));
        assert_eq!(chosen, [0, 0, 2, 2, 1, 2].map(|index: usize| Ok(TEXTS[index])));
        assert_eq!(choose(&TEXTS, (5, 2)), Ok(TEXTS[0]), "the driver says what is wrong");
        assert_eq!(choose(&["no PTX"], (8, 0)), Ok("no PTX"));
    }

    #[test]
    fn the_target_is_replaced_on_pascal_alone_and_only_where_the_declaration_allows_it() {
        const TEXT: &str = "// .target sm_70\n.version 8.0\n.target sm_70, debug\n.visible .entry k() {}\n";
        const FOR_PASCAL: &str =
            "// .target sm_70\n.version 8.0\n.target sm_60, debug\n.visible .entry k() {}\n";
        for capability in [(6, 0), (6, 1), (6, 2)] {
            assert_eq!(as_loaded(TEXT, true, capability), FOR_PASCAL);
            assert_eq!(as_loaded(TEXT, false, capability), TEXT);
            for text in [FOR_PASCAL, "no PTX", ".version 8.0 .target sm_70"] {
                assert_eq!(as_loaded(text, true, capability), text);
            }
        }
        for capability in [(5, 2), (7, 0), (7, 5), (9, 0)] {
            assert_eq!(as_loaded(TEXT, true, capability), TEXT);
        }
        assert_eq!(as_loaded(".version 8.0\n.target sm_80", true, (7, 5)), ".version 8.0\n.target sm_80");
    }
}
