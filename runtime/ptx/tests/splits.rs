//! Seeds split warps: code that relies on lanes which run together fails under some of them.

use warpline_ptx::{Checks, Config, Memory, Module, Region};

/// Seeds that are tried.
const SEEDS: std::ops::Range<u64> = 0..40;

/// A sum of 32 words by one warp in shared memory, which is volatile. `sync` separates its steps.
fn sum(target: &str, sync: &str) -> String {
    let steps: String = [16, 8, 4, 2, 1]
        .map(|step| {
            format!(
                "ld.volatile.shared.u32 %r1, [%word];
                ld.volatile.shared.u32 %r2, [%word+{}];
                add.u32 %r1, %r1, %r2;
                {sync}
                st.volatile.shared.u32 [%word], %r1;
                {sync}\n",
                4 * step
            )
        })
        .concat();
    format!(
        ".version 8.0 .target {target} .address_size 64
        .shared .align 4 .b8 words[256];
        .visible .entry sum(.param .u64 in, .param .u64 out) {{
            .reg .b32 %t, %word, %r<4>; .reg .b64 %in, %out, %at; .reg .pred %first;
            ld.param.u64 %in, [in];
            ld.param.u64 %out, [out];
            mov.u32 %t, %tid.x;
            mul.wide.u32 %at, %t, 4;
            add.u64 %in, %in, %at;
            ld.global.u32 %r0, [%in];
            mov.u32 %word, words;
            shl.b32 %r3, %t, 2;
            add.u32 %word, %word, %r3;
            st.volatile.shared.u32 [%word], %r0;
            st.volatile.shared.u32 [%word+128], 0;
            {sync}
            {steps}
            setp.eq.u32 %first, %t, 0;
            @%first st.global.u32 [%out], %r1;
            ret;
        }}"
    )
}

/// Returns the sum of the words from 1 to 32, or nothing if a check has failed.
fn run(text: &str, seed: Option<u64>, checks: Checks) -> Option<u32> {
    let module = Module::new(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let kernel = module.kernel("sum").unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut words: Vec<u32> = (1..=33).collect();
    let start = words.as_mut_ptr().expose_provenance() as u64;
    let region = Region { is_writable: true, ..Region::new("words", start, 4 * 33, 4) };
    let params: Vec<u8> = [start, start + 4 * 32].iter().flat_map(|address| address.to_le_bytes()).collect();
    let config = Config { seed, checks, ..Config::linear(1, 32) };
    // SAFETY: launch needs a region that is valid and that nothing else accesses meanwhile: it is
    // the vector above.
    let result = unsafe { kernel.launch(&config, &params, Memory::Regions(vec![region])) };
    result.ok().map(|_| words[32])
}

const RIGHT: Option<u32> = Some(32 * 33 / 2);

fn wrong_seeds(text: &str, checks: Checks) -> usize {
    SEEDS.filter(|seed| run(text, Some(*seed), checks) != RIGHT).count()
}

#[test]
fn a_sum_that_relies_on_lanes_running_together_is_wrong_under_some_seeds() {
    let text = sum("sm_70", "");
    for checks in [Checks::default(), Checks::ALL] {
        assert_eq!(run(&text, None, checks), RIGHT);
        let wrong = wrong_seeds(&text, checks);
        assert!((4..=36).contains(&wrong), "{wrong} of {SEEDS:?}");
    }
}

#[test]
fn a_sum_whose_lanes_wait_for_each_other_is_right_under_all_seeds() {
    for sync in ["bar.warp.sync -1;", "bar.sync 0;", "barrier.sync 0;", "bar.sync 0, 32;"] {
        let text = sum("sm_70", sync);
        for checks in [Checks::default(), Checks::ALL] {
            assert_eq!(run(&text, None, checks), RIGHT, "{sync}");
            assert_eq!(wrong_seeds(&text, checks), 0, "{sync}");
        }
    }
}

#[test]
fn a_text_for_gpus_whose_lanes_run_together_is_not_split() {
    let text = sum("sm_61", "");
    assert_eq!(wrong_seeds(&text, Checks::default()), 0);
}

#[test]
fn a_seed_gives_the_same_result_each_time() {
    let text = sum("sm_90a", "");
    for seed in SEEDS {
        let results = [(); 3].map(|()| run(&text, Some(seed), Checks::default()));
        assert_eq!(results, [results[0]; 3], "{seed}");
    }
}
