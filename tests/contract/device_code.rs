//! Kernels without a CPU form: every device that runs device code runs their PTX.

use crate::support::says;
use crate::{contract, refused};
use warpline::prelude::*;

const PTX: &str = include_str!("device_code.ptx");

/// Does nothing, so that a device which loads it instead of the newer text is noticed.
const FOR_AN_OLDER_TARGET: &str = ".version 6.0\n.target sm_60\n.address_size 64\n\
    .visible .entry scale(.param .u32 n, .param .f32 a, .param .u64 x, .param .u64 y) { ret; }";

warpline::kernel! {
    /// Computes y ← a·x for `n` elements.
    unsafe fn scale(n: u32, a: f32, x: &[f32], write y: &mut [f32])
    where n as usize <= x.len(), n as usize == y.len()
    {
        descriptor: SCALE,
        ptx: [FOR_AN_OLDER_TARGET, PTX],
    }

    /// Adds the numbers of a block's threads in shared memory, one sum a block.
    unsafe fn block_sums(write sums: &mut [u32]) {
        ptx: PTX,
    }

    /// Adds `by` to a counter of the module and writes the sum.
    unsafe fn count(by: u8, write sum: &mut [u64]) {
        descriptor: COUNT,
        ptx: PTX,
    }

    /// Adds to each element its right neighbour, from `a` to `b` and back. Cooperative groups
    /// separate the rounds.
    unsafe fn grid_groups(a: &mut [u32], b: &mut [u32], rounds: u32) {
        ptx: include_str!("../../runtime/ptx/tests/corpus/ptx/grid_groups.ptx"),
    }

    /// Contains an instruction that no device has.
    unsafe fn impossible(y: &mut [f32]) {
        descriptor: IMPOSSIBLE,
        ptx: ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry impossible(.param .u64 y)\n{\nquery.all;\n}",
    }
}

/// Returns true on a device that runs CPU forms alone.
fn runs_twins_alone(device: &Device) -> bool {
    matches!(device.id(), DeviceId::Other { .. })
}

contract! {
    async fn a_kernel_without_a_cpu_form_runs_its_ptx([device]) {
        let stream = device.stream().label("s").build()?;
        let (x, y) = (stream.alloc::<f32>(1000)?, stream.alloc::<f32>(1000)?);
        drop(stream.write(&x, &(0..1000).map(|i| i as f32).collect::<Vec<_>>()));
        let launched = stream.launch(scale(1000, 2.0, &x, &y), LaunchConfig::for_elements(1000u32));
        if runs_twins_alone(&device) {
            let error = refused(launched).await;
            says(&error, ErrorKind::Driver, &["scale has no CPU form; give it cpu"]);
            y.accept_contents();
            return Ok(());
        }
        assert_eq!(stream.read(&y).await?, (0..1000).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
    }

    async fn blocks_have_shared_memory_and_barriers([device]) {
        if runs_twins_alone(&device) {
            return Ok(());
        }
        let stream = device.new_stream()?;
        let sums = stream.alloc::<u32>(200)?;
        // Enough threads that several threads of the host take part.
        drop(stream.launch(block_sums(&sums), LaunchConfig::linear(200, 64)));
        assert_eq!(stream.read(&sums).await?, [63 * 64 / 2; 200]);
    }

    async fn cooperative_groups_synchronise_the_grid_of_a_cooperative_launch([device]) {
        if runs_twins_alone(&device) {
            return Ok(());
        }
        let stream = device.new_stream()?;
        let (a, b) = (stream.alloc::<u32>(256)?, stream.alloc::<u32>(256)?);
        drop(stream.fill(&a, 1));
        drop(stream.fill(&b, 0));
        assert!(device.properties().cooperative_launch);
        let config = LaunchConfig::linear(4, 64).cooperatively();
        for _ in 0..2 {
            drop(stream.launch(grid_groups(&a, &b, 4), config));
        }
        assert_eq!(stream.read(&a).await?, [1 << 8; 256]);
        assert_eq!(stream.read(&b).await?, [1 << 7; 256]);
    }

    async fn launches_on_two_streams_run_at_once([device]) {
        if runs_twins_alone(&device) {
            return Ok(());
        }
        let config = LaunchConfig::for_elements(512u32);
        let mut results = Vec::new();
        for factor in [2.0, 3.0] {
            let stream = device.new_stream()?;
            let (x, y) = (stream.alloc::<f32>(512)?, stream.alloc::<f32>(512)?);
            drop(stream.fill(&x, 1.0));
            for _ in 0..10 {
                drop(stream.launch(scale(512, factor, &x, &y), config));
                drop(stream.launch(scale(512, 1.0, &y, &x), config));
            }
            results.push((factor, stream.read(&x)));
        }
        for (factor, result) in results {
            assert_eq!(result.await?, vec![f32::powi(factor, 10); 512]);
        }
    }

    async fn a_graph_runs_ptx([device]) {
        if runs_twins_alone(&device) {
            return Ok(());
        }
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(8)?, stream.alloc::<f32>(8)?);
        drop(stream.fill(&x, 1.0));
        let config = LaunchConfig::for_elements(8u32);
        let (graph, ()) = stream.capture(|stream| {
            drop(stream.launch(scale(8, 2.0, &x, &y), config));
            drop(stream.launch(scale(8, 1.0, &y, &x), config));
        })?;
        for _ in 0..3 {
            drop(graph.launch(&stream));
        }
        assert_eq!(stream.read(&x).await?, [8.0; 8]);
    }

    async fn kernels_of_one_text_share_its_variables([device]) {
        // `tests/cuda` has the variables of CUDA devices.
        if !matches!(device.id(), DeviceId::Cpu(_)) {
            return Ok(());
        }
        let stream = device.new_stream()?;
        device.load([&COUNT, &SCALE])?;
        let counter = stream.global::<u32>(&COUNT, "counter")?;
        drop(stream.fill(&counter, 40));
        let sum = stream.alloc::<u64>(1)?;
        drop(stream.launch(count(2, &sum), LaunchConfig::linear(1, 1)));
        assert_eq!(stream.read(&sum).await?, [42]);
        let again = stream.global::<u32>(&SCALE, "counter")?;
        assert_eq!(stream.read(&again).await?, [42]);
        assert!(stream.global::<u32>(&COUNT, "nothing").is_err());
    }

    async fn ptx_that_cannot_be_loaded_refuses_the_launch([device]) {
        let stream = device.stream().label("s").build()?;
        let y = stream.alloc::<f32>(8)?;
        let error = refused(stream.launch(impossible(&y), LaunchConfig::linear(1, 1))).await;
        let is_cpu = matches!(device.id(), DeviceId::Cpu(_));
        let why = if is_cpu {
            &["impossible on stream \"s\" (tests/contract/device_code.rs:", "impossible cannot be loaded: its PTX \
               cannot run on a CPU device: line 6: query"][..]
        } else {
            &["impossible"]
        };
        says(&error, ErrorKind::Driver, why);
        if is_cpu {
            says(&device.load([&IMPOSSIBLE]).unwrap_err(), ErrorKind::Driver, &["line 6: query"]);
        }
        assert_eq!(stream.issued(), 0);
        y.accept_contents();
    }
}
