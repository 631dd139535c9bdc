//! Random programs without races: each gives the result of a reference, in every order of warps and
//! on several threads of the host, and passes all checks.
//!
//! `program` draws a program, `text` writes it as PTX, and `reference` runs it thread by thread.
//! The programs branch, loop and call on values that differ between lanes, exchange values through
//! shared memory, shuffles, votes and barriers, and count with atomic operations.

mod driver;
#[path = "random/program.rs"]
mod program;
#[path = "random/reference.rs"]
mod reference;
#[path = "random/text.rs"]
mod text;

use program::{COUNTERS, Program, VALUES};
use proptest::prelude::*;
use warpline_ptx::{Checks, Config, Memory, Module, Region};

/// The contents of memory after a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The values of each thread, and behind them the shared counters of each block.
    out: Vec<u32>,
    /// The counters that all blocks share.
    counters: Vec<u32>,
}

/// Runs the PTX of a program.
fn run(program: &Program, text: &str, config: &Config) -> Outcome {
    let module = Module::new(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let kernel = module.kernel("main").unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut input: Vec<u32> = (0..program.all_threads()).map(Program::input).collect();
    let mut out = vec![0u32; program.out_len()];
    let mut counters = vec![0u32; COUNTERS.len()];
    let regions: Vec<Region> = [("input", &mut input), ("out", &mut out), ("counters", &mut counters)]
        .map(|(name, words)| Region {
            name: name.to_owned(),
            start: words.as_mut_ptr().expose_provenance() as u64,
            len_bytes: 4 * words.len() as u64,
            is_writable: name != "input",
            is_undefined: false,
            element_bytes: 4,
        })
        .into();
    let params: Vec<u8> = regions.iter().flat_map(|region| region.start.to_le_bytes()).collect();
    // SAFETY: launch needs regions that are valid and that nothing else accesses meanwhile: they
    // are the vectors above.
    let printed = unsafe { kernel.launch(config, &params, Memory::Regions(regions)) };
    printed.unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    Outcome { out, counters }
}

/// Runs the PTX of a program on the CUDA driver.
fn run_on_driver(program: &Program, text: &str) -> Result<Outcome, String> {
    let mut input: Vec<u32> = (0..program.all_threads()).map(Program::input).collect();
    let mut out = vec![0u32; program.out_len()];
    let mut counters = vec![0u32; COUNTERS.len()];
    let mut arrays = [&mut input, &mut out, &mut counters].map(|words| bytemuck::cast_slice_mut(words));
    let config = Config::linear(program.blocks, program.threads);
    driver::launch(text, "main", &config, &mut arrays, |addresses| {
        addresses.iter().map(|address| address.to_le_bytes().into()).collect()
    })?;
    Ok(Outcome { out, counters })
}

proptest! {
    #[test]
    fn a_program_without_races_gives_one_result_in_every_order(
        program in program::any(),
        seeds in prop::collection::vec(any::<u64>(), 3),
    ) {
        let text = text::of(&program);
        let expected = reference::run(&program);
        if driver::is_asked() {
            let found = run_on_driver(&program, &text);
            prop_assert!(found == Ok(expected.clone()), "{found:?}\n{expected:?}\n{text}");
            return Ok(());
        }
        let config = Config::linear(program.blocks, program.threads);
        let seeded = seeds.iter().map(|seed| Config { seed: Some(*seed), ..config });
        let checked = Config { checks: Checks::ALL, ..config };
        let checked = [checked, Config { seed: Some(seeds[0]), ..checked }];
        let unseeded = [config, Config { threads: 3, ..config }];
        for config in unseeded.into_iter().chain(seeded).chain(checked) {
            let found = run(&program, &text, &config);
            prop_assert!(found == expected, "{config:?}\n{found:?}\n{expected:?}\n{text}");
        }
    }
}

#[test]
fn a_program_has_as_many_values_as_the_text_declares() {
    let text = text::of(&Program { threads: 1, blocks: 1, phases: Vec::new() });
    assert!(text.contains(&format!(".reg .b32 %v<{VALUES}>;")), "{text}");
}
