//! Runs each kernel of the corpus, on one thread of the host and on several, in several orders.

mod corpus;
mod driver;

use corpus::manifest::{self, Case, Parameter, cases};
use corpus::references::{Expected, expected};
use corpus::values::Values;
use std::path::Path;
use warpline_ptx::{Checks, Config, Fault, FaultKind, Kernel, Memory, Module, NamedByte, Region};

fn text(case: &Case) -> String {
    // Cargo sets the variable. On a machine without the sources, the caller does.
    let package = std::env::var("CARGO_MANIFEST_DIR");
    let folder = Path::new(package.as_deref().unwrap_or(env!("CARGO_MANIFEST_DIR"))).join("corpus/ptx");
    std::fs::read_to_string(folder.join(format!("{}.ptx", case.file))).expect("it is there")
}

fn kernel(case: &Case) -> Kernel {
    let module = Module::new(text(case)).unwrap_or_else(|error| panic!("{}: {error}", case.file));
    module.kernel(&case.kernel).unwrap_or_else(|error| panic!("{}: {error}", case.file))
}

/// The results of a launch.
struct Ran {
    arrays: Vec<(String, Values)>,
    result: Result<String, Box<Fault>>,
}

/// Runs a kernel on copies of its arguments.
fn run(case: &Case, kernel: &Kernel, config: &Config) -> Ran {
    let mut memory: Vec<Option<Vec<u64>>> = Vec::new();
    let mut params = Vec::new();
    let mut regions = Vec::new();
    for parameter in &case.parameters {
        let bytes = parameter.values.bytes();
        let size = bytes.len() / parameter.values.len().max(1);
        if !parameter.is_array {
            params.resize(params.len().next_multiple_of(size), 0);
            params.extend(bytes);
            memory.push(None);
            continue;
        }
        let mut words = vec![0u64; bytes.len().div_ceil(8) + 1];
        for (at, byte) in bytes.iter().enumerate() {
            words[at / 8] |= u64::from(*byte) << (at % 8 * 8);
        }
        let start = words.as_mut_ptr().expose_provenance() as u64;
        regions.push(Region {
            name: parameter.name.clone(),
            start,
            len_bytes: bytes.len() as u64,
            is_writable: true,
            is_undefined: false,
            element_bytes: size as u32,
        });
        params.resize(params.len().next_multiple_of(8), 0);
        params.extend(start.to_le_bytes());
        memory.push(Some(words));
    }
    // SAFETY: launch needs regions that are valid and that nothing else accesses meanwhile: they
    // are the vectors above.
    let result = unsafe { kernel.launch(config, &params, Memory::Regions(regions)) };
    let arrays = case.parameters.iter().zip(memory).filter_map(|(parameter, words)| {
        let bytes: Vec<u8> = words?.iter().flat_map(|word| word.to_le_bytes()).collect();
        let len = parameter.values.bytes().len();
        Some((parameter.name.clone(), parameter.values.like(&bytes[..len])))
    });
    Ran { arrays: arrays.collect(), result }
}

/// Runs a kernel on the CUDA driver. What it prints goes to the output of the process.
fn run_on_driver(case: &Case) -> Result<Vec<(String, Values)>, String> {
    let arrays = || case.parameters.iter().filter(|parameter| parameter.is_array);
    let mut contents: Vec<Vec<u8>> = arrays().map(|parameter| parameter.values.bytes()).collect();
    let mut slices: Vec<&mut [u8]> = contents.iter_mut().map(|bytes| &mut bytes[..]).collect();
    driver::launch(&text(case), &case.kernel, &config(case), &mut slices, |addresses| {
        let mut addresses = addresses.iter();
        let bytes = |parameter: &Parameter| match parameter.is_array {
            true => addresses.next().expect("an array has an address").to_le_bytes().into(),
            false => parameter.values.bytes(),
        };
        case.parameters.iter().map(bytes).collect()
    })?;
    let results = arrays().zip(contents);
    Ok(results.map(|(parameter, bytes)| (parameter.name.clone(), parameter.values.like(&bytes))).collect())
}

fn config(case: &Case) -> Config {
    Config {
        grid: case.grid,
        block: case.block,
        cluster: None,
        shared_bytes: case.shared_bytes,
        is_cooperative: case.cooperative,
        threads: 1,
        seed: None,
        checks: Checks::default(),
    }
}

fn check(case: &Case, kernel: &Kernel, config: &Config) -> Result<(), String> {
    let Ran { arrays, result } = run(case, kernel, config);
    let printed = result.map_err(|fault| fault.to_string())?;
    compare(case, &arrays, Some(&printed))
}

/// Compares the results of a launch with those expected. `None` stands for text that was not seen.
fn compare(case: &Case, arrays: &[(String, Values)], printed: Option<&str>) -> Result<(), String> {
    for expected in expected(case) {
        match expected {
            Expected::Array { parameter, values, agreement } => {
                let found = arrays.iter().find(|(name, _)| name == parameter);
                let (_, found) = found.ok_or_else(|| format!("there is no {parameter}"))?;
                agreement.check(&values, found).map_err(|problem| format!("{parameter}: {problem}"))?;
            }
            Expected::Lines(mut lines) => {
                let Some(printed) = printed else { continue };
                let mut found: Vec<&str> = printed.lines().collect();
                found.sort_unstable();
                lines.sort_unstable();
                if found != lines {
                    return Err(format!("printed {found:?}; expected {lines:?}"));
                }
            }
        }
    }
    Ok(())
}

/// Runs all sound kernels with the configurations that `configs` returns.
fn all_agree(configs: impl Fn(&Case) -> Vec<Config>) {
    let only = std::env::var("WARPLINE_PTX_CORPUS").ok();
    let mut problems = Vec::new();
    for case in cases().iter().filter(|case| case.fault.is_none()) {
        if only.as_ref().is_some_and(|only| *only != case.file) {
            continue;
        }
        let kernel = kernel(case);
        for config in configs(case) {
            if let Err(problem) = check(case, &kernel, &config) {
                problems.push(format!("{} with {config:?}: {problem}", case.file));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn sound_kernels_give_the_results_of_their_references() {
    if driver::is_asked() {
        return sound_kernels_agree_on_the_driver();
    }
    all_agree(|case| vec![config(case)]);
}

fn sound_kernels_agree_on_the_driver() {
    let mut problems = Vec::new();
    for case in cases().iter().filter(|case| case.fault.is_none()) {
        let result = run_on_driver(case).and_then(|arrays| compare(case, &arrays, None));
        problems.extend(result.err().map(|problem| format!("{}: {problem}", case.file)));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn sound_kernels_pass_all_checks_in_any_order_of_warps() {
    all_agree(|case| {
        let config = Config { checks: Checks::ALL, ..config(case) };
        let seeded = (0..10).map(|seed| Config { seed: Some(seed), ..config });
        [config].into_iter().chain(seeded).collect()
    });
}

#[test]
fn sound_kernels_give_the_same_results_on_several_threads() {
    all_agree(|case| vec![Config { threads: 4, ..config(case) }]);
}

#[test]
fn sound_kernels_give_the_same_results_in_any_order_of_warps() {
    all_agree(|case| (0..20).map(|seed| Config { seed: Some(seed), ..config(case) }).collect());
}

#[test]
fn groups_do_not_synchronise_the_grid_of_a_launch_that_is_not_cooperative() {
    let cases = cases();
    let case = cases.iter().find(|case| case.file == "grid_groups").expect("it is there");
    let config = Config { is_cooperative: false, ..config(case) };
    let fault = run(case, &kernel(case), &config).result.unwrap_err();
    assert_eq!(fault.kind, FaultKind::TrapWithoutGrid);
    let text = fault.to_string();
    assert!(text.ends_with("which this one is not; launch the kernel cooperatively"), "{text}");
}

/// Returns whether a fault is of the kind that was planted.
fn is_of_kind(found: &FaultKind, planted: manifest::FaultKind) -> bool {
    use manifest::FaultKind as Planted;
    match planted {
        // Behind a local array there may be padding, which nothing writes.
        Planted::Bounds => matches!(
            found,
            FaultKind::OutOfBounds { .. }
                | FaultKind::OutOfShared { .. }
                | FaultKind::OutOfLocal { .. }
                | FaultKind::Uninitialised { place: NamedByte::Local { .. }, .. }
        ),
        Planted::Align => matches!(found, FaultKind::Misaligned { .. }),
        Planted::Sync => matches!(
            found,
            FaultKind::Deadlock { .. }
                | FaultKind::NotAMember { .. }
                | FaultKind::DivergentBarrier { .. }
                | FaultKind::ShuffleFromExited { .. }
                | FaultKind::BlockExited { .. }
        ),
        Planted::Assert => matches!(found, FaultKind::Assert { .. }),
        Planted::Trap => matches!(found, FaultKind::Trap),
        // A race of the first write shows as a read of undefined bytes if the read comes first.
        Planted::Race => matches!(found, FaultKind::Race(_) | FaultKind::Uninitialised { .. }),
        Planted::Init => matches!(found, FaultKind::Uninitialised { .. }),
    }
}

/// Returns whether a fault is the one that was planted, at its lines.
fn is_it(fault: &Fault, planted: &manifest::Fault) -> bool {
    let mut lines = vec![fault.source.as_ref()];
    if let FaultKind::Race(race) = &fault.kind {
        lines.push(race.earlier.source.as_ref());
    }
    is_of_kind(&fault.kind, planted.kind)
        && lines.iter().all(|line| line.is_some_and(|source| planted.lines.contains(&source.line)))
}

#[test]
fn a_planted_fault_is_reported_at_its_line() {
    let mut problems = Vec::new();
    let (mut planted_faults, mut reported) = (0, 0);
    for case in &cases() {
        let Some(planted) = &case.fault else { continue };
        planted_faults += 1;
        let kernel = kernel(case);
        if planted.kind == manifest::FaultKind::Race {
            let checks = Checks { races: true, ..Checks::default() };
            match run(case, &kernel, &Config { checks, ..config(case) }).result {
                Err(fault) if matches!(fault.kind, FaultKind::Race(_)) && is_it(&fault, planted) => {}
                other => problems.push(format!("{}, {planted:?}: {other:?}", case.file)),
            }
        }
        for seed in [None, Some(1), Some(2), Some(3)] {
            let config = Config { checks: Checks::ALL, seed, ..config(case) };
            match run(case, &kernel, &config).result {
                Err(fault) if is_it(&fault, planted) => reported += 1,
                Err(fault) => problems.push(format!("{}, {seed:?}, {planted:?}: {fault}", case.file)),
                Ok(_) => problems.push(format!("{}, {seed:?}, {planted:?}: no report", case.file)),
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(planted_faults > 40, "only {planted_faults} faults are planted");
    assert_eq!(reported, 4 * planted_faults);
}
