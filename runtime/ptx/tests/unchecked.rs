//! Launches that may touch any memory of the process.

use warpline_ptx::{Checks, Config, Fault, FaultKind, Memory, Module, NamedByte, Region};

/// The words of the array, of which the operand `x` has the first half.
const WORDS: u64 = 8;

/// Runs a body in two blocks of four threads. `%own` is the address of a word of the array,
/// another one for each thread, and `%last` that of the last word of it. Returns the array.
fn run(
    body: &str,
    checks: Checks,
    x: Region,
    memory: impl FnOnce(Vec<Region>) -> Memory,
) -> Result<Vec<u32>, Box<Fault>> {
    let text = format!(
        ".version 8.0 .target sm_70 .address_size 64
        .visible .entry main(.param .u64 x) {{
            .reg .b32 %r<4>; .reg .b64 %own, %last;
            ld.param.u64 %last, [x];
            mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, 4, %r0;
            mad.wide.u32 %own, %r0, 4, %last;
            add.u64 %last, %last, 28;
            {body}
            ret;
        }}"
    );
    let kernel = Module::new(text).unwrap().kernel("main").unwrap();
    let mut array = vec![0u32; WORDS as usize];
    let start = array.as_mut_ptr().expose_provenance() as u64;
    let memory = memory(vec![Region { start, ..x }]);
    let config = Config { checks, ..Config::linear(2, 4) };
    // SAFETY: the kernel touches the array alone, which nothing else uses meanwhile.
    unsafe { kernel.launch(&config, &start.to_le_bytes(), memory) }.map(|_| array)
}

fn x() -> Region {
    Region { is_writable: true, ..Region::new("x", 0, 4 * WORDS / 2, 4) }
}

const NUMBER_OWN: &str = "st.global.u32 [%own], %r0;";

#[test]
fn an_access_beyond_a_region_is_a_fault_only_where_bounds_are_checked() {
    let fault = run(NUMBER_OWN, Checks::default(), x(), Memory::Regions).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{fault}");
    let array = run(NUMBER_OWN, Checks::default(), x(), Memory::Unchecked).unwrap();
    assert_eq!(array, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_write_to_memory_that_is_read_alone_is_a_fault_only_where_bounds_are_checked() {
    let x = || Region { is_writable: false, len_bytes: 4 * WORDS, ..x() };
    let fault = run(NUMBER_OWN, Checks::default(), x(), Memory::Regions).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::ReadOnly { .. }), "{fault}");
    let array = run(NUMBER_OWN, Checks::default(), x(), Memory::Unchecked).unwrap();
    assert_eq!(array, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn races_are_found_within_the_regions_and_elsewhere() {
    let raced = |body, x| {
        let fault = run(body, Checks::ALL, x, Memory::Unchecked).unwrap_err();
        let FaultKind::Race(race) = fault.kind else { panic!("{fault}") };
        race.place
    };
    let at_last = "st.global.u32 [%last], %r0;";
    assert!(matches!(raced(at_last, x()), NamedByte::Address(_)));
    let is_x = |place| matches!(place, NamedByte::Region { region, .. } if region.name == "x");
    let whole = Region { len_bytes: 4 * WORDS, ..x() };
    assert!(is_x(raced(at_last, whole.clone())));
    assert!(is_x(raced(at_last, Region { is_writable: false, ..whole })), "nothing refuses the write");
}

#[test]
fn undefined_regions_are_known_where_bounds_are_not_checked() {
    let failed = |body| {
        let x = Region { is_undefined: true, ..x() };
        run(body, Checks::ALL, x, Memory::Unchecked).unwrap_err()
    };
    let fault = failed("ld.global.u32 %r0, [%last-28]; st.global.u32 [%own], %r0;");
    assert!(matches!(fault.kind, FaultKind::Uninitialised { .. }), "{fault}");
    let fault = failed("");
    assert!(matches!(fault.kind, FaultKind::NotWritten { element: 0, .. }), "{fault}");
}

#[test]
fn generic_addresses_of_shared_memory_are_watched_as_such() {
    let run = |between: &str| {
        let text = format!(
            ".version 8.0 .target sm_70 .address_size 64
            .shared .align 4 .b8 s[256];
            .visible .entry main() {{
                .reg .b32 %t, %r; .reg .b64 %s, %own;
                mov.u64 %s, s; cvta.shared.u64 %s, %s;
                mov.u32 %t, %tid.x; mad.wide.u32 %own, %t, 4, %s;
                st.u32 [%own], %t;
                {between}
                xor.b32 %t, %t, 63; mad.wide.u32 %own, %t, 4, %s;
                ld.u32 %r, [%own];
                bar.sync 0;
                st.u32 [%own], %r;
                ret;
            }}"
        );
        let kernel = Module::new(text).unwrap().kernel("main").unwrap();
        let config = Config { checks: Checks::ALL, ..Config::linear(1, 64) };
        // SAFETY: the kernel touches shared memory alone.
        unsafe { kernel.launch(&config, &[], Memory::Unchecked(Vec::new())) }
    };
    run("bar.sync 0;").unwrap();
    let fault = run("").unwrap_err();
    // The second warp has not written its words, or its write races.
    assert!(matches!(fault.kind, FaultKind::Uninitialised { .. } | FaultKind::Race(_)), "{fault}");
}
