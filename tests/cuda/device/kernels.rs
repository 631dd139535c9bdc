//! Device code: the resources of a launch, variables of modules, and images.

use crate::device::{cuda, ramp};
use crate::support::raw::calls_in;
use crate::support::says;
use crate::support::software::in_child;
use warpline::kernels;
use warpline::prelude::*;

/// A module with two kernels and three variables.
const SCALE_PTX: &str = "
.version 8.1
.target sm_70
.address_size 64
.visible .global .align 4 .f32 factors[4] = {1.5, 2.0, 0f40400000, 4.0};
.visible .const .align 8 .u64 limit = 7;
.visible .global .align 4 .f32 odd[3];
.visible .entry scale_by_table(.param .u32 n, .param .u64 x) { ret; }
.visible .entry count_calls(.param .u64 x) { ret; }
";

/// An image that begins like a cubin. The software CUDA driver checks no more of it.
const CUBIN: &[u8] = b"\x7fELF\x02\x01\x01\x33 of no machine";
const FATBIN: &[u8] = b"\x50\xed\x55\xba of no machine";

warpline::kernel! {
    /// Writes to the element of each block the number of the other block of its cluster.
    unsafe fn in_pairs(write x: &mut [u32]) { ptx: include_str!("../../support/in_pairs.ptx") }
}

warpline::kernel! {
    /// x[i] ← x[i] · 2.
    pub(crate) unsafe fn scale_by_table(n: u32, x: &mut [f32])
    where n as usize <= x.len()
    {
        descriptor: SCALE,
        ptx: SCALE_PTX,
        cpu: |n, x| x[..n as usize].iter_mut().for_each(|x| *x *= 2.0),
    }

    /// x[0] ← x[0] + 1.
    pub(crate) unsafe fn count_calls(x: &mut [f32])
    where !x.is_empty()
    {
        descriptor: COUNT,
        ptx: SCALE_PTX,
        cpu: |x| x[0] += 1.0,
    }

    /// x ← −x.
    pub(crate) unsafe fn negate_image(x: &mut [f32]) {
        image: CUBIN,
        cpu: |x| x.iter_mut().for_each(|x| *x = -*x),
    }

    /// x ← x − 1.
    pub(crate) unsafe fn decrement_image(x: &mut [f32]) {
        image: FATBIN,
        cpu: |x| x.iter_mut().for_each(|x| *x -= 1.0),
    }

    /// A kernel whose image has no valid beginning.
    pub(crate) unsafe fn no_image(x: &mut [f32]) {
        image: b"neither one nor the other",
        cpu: |_x| (),
    }

    /// A kernel whose PTX is cut off.
    pub(crate) unsafe fn cut_off(x: &mut [f32]) {
        ptx: ".version 8.1\n.target sm_70\n.address_size 64\n.visible .entry cut_off(.param .u64 x) {",
        cpu: |_x| (),
    }

    /// A kernel whose PTX needs a newer driver than the software one claims to be.
    pub(crate) unsafe fn of_a_newer_isa(x: &mut [f32]) {
        ptx: ".version 8.7\n.target sm_70\n.address_size 64\n.visible .entry of_a_newer_isa(.param .u64 x) { ret; }",
        cpu: |_x| (),
    }

    /// A kernel whose blocks have at most 64 threads.
    pub(crate) unsafe fn of_small_blocks(x: &mut [f32]) {
        ptx: ".version 8.0\n.target sm_60\n.address_size 64\n\
              .visible .entry of_small_blocks(.param .u64 x)\n.maxntid 64\n{ ret; }",
        cpu: |x| x[0] += 1.0,
    }

    /// A kernel whose PTX is for a newer device than Pascal, and assembles for Pascal too.
    pub(crate) unsafe fn for_pascal_too(x: &mut [f32]) {
        ptx_from_sm_60: ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry for_pascal_too(.param .u64 x) { ret; }",
        cpu: |x| x[0] += 1.0,
    }

    /// A kernel whose PTX is for a newer device.
    pub(crate) unsafe fn for_a_newer_device(x: &mut [f32]) {
        ptx: ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry for_a_newer_device(.param .u64 x) { ret; }",
        cpu: |_x| (),
    }

    /// A kernel without device code.
    pub(crate) unsafe fn cpu_only(x: &mut [f32]) {
        descriptor: CPU_ONLY,
        cpu: |_x| (),
    }
}

#[test]
fn shared_memory_above_48_kib_is_asked_for_once() {
    in_child(&[], || {
        let device = cuda(0);
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(8).unwrap();
        drop(stream.fill(&x, -1.0));
        let with = |bytes: u32| LaunchConfig::for_elements(8u32).with_shared_bytes(bytes);
        let launch = |bytes| stream.launch(kernels::relu(8, &x, &x), with(bytes));
        let asked = |bytes: u32| {
            let ([calls], done) = calls_in([c"cuFuncSetAttribute"], || launch(bytes));
            done.blocking_wait().unwrap();
            calls
        };
        assert_eq!(
            [48 << 10, 64 << 10, 64 << 10, 50 << 10, 99 << 10, 99 << 10].map(asked),
            [0, 1, 0, 0, 1, 0]
        );
        let most = device.properties().shared_bytes_per_block;
        let error = launch(most + 1).blocking_wait().unwrap_err();
        assert_eq!(error.cuda_code(), Some(1));
        says(
            &error,
            ErrorKind::Driver,
            &[
                "relu on stream",
                "101377 bytes of dynamic shared memory a block",
                "a block has at most 101376 on cuda:0",
                "the device is still usable",
            ],
        );
        drop(stream.fill(&x, 1.0));
        launch(0).blocking_wait().unwrap();
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1.0; 8]);
    });
}

#[test]
fn the_crates_kernels_load_on_the_oldest_driver_and_the_oldest_device() {
    for capability in ["6.0", "6.1", "6.2", "7.0"] {
        let variables = [
            ("SOFTCUDA_DRIVER_VERSION", "12000"),
            ("SOFTCUDA_CAPABILITY", capability),
            ("TEST_CAPABILITY", capability),
        ];
        in_child(&variables, || {
            let device = cuda(0);
            let (major, minor) = device.properties().compute_capability.unwrap();
            assert_eq!(format!("{major}.{minor}"), std::env::var("TEST_CAPABILITY").unwrap());
            device.load(kernels::ALL.iter().copied()).unwrap();
            let stream = device.new_stream().unwrap();
            let x = stream.alloc::<f32>(8).unwrap();
            drop(stream.fill(&x, -1.0));
            stream
                .launch(kernels::relu(8, &x, &x), LaunchConfig::for_elements(8u32))
                .blocking_wait()
                .unwrap();
            assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; 8]);
        });
    }
}

#[test]
fn pascal_refuses_ptx_for_a_newer_target_unless_it_is_declared_from_sm_60() {
    for capability in ["6.0", "6.1", "6.2"] {
        let variables = [("SOFTCUDA_CAPABILITY", capability), ("TEST_CAPABILITY", capability)];
        in_child(&variables, || {
            let device = cuda(0);
            let stream = device.new_stream().unwrap();
            let x = stream.alloc::<f32>(4).unwrap();
            drop(stream.fill(&x, 1.0));
            let config = LaunchConfig::linear(1, 32);
            let (major, minor) = device.properties().compute_capability.unwrap();
            assert_eq!(format!("{major}.{minor}"), std::env::var("TEST_CAPABILITY").unwrap());
            let error = stream.launch(count_calls(&x), config).blocking_wait().unwrap_err();
            let said = format!(
                "count_calls cannot be loaded: its PTX is for sm_70, and cuda:0 (software CUDA driver (not a GPU)) has \
                 compute capability {major}.{minor}; compile it for compute_{major}{minor} or older"
            );
            says(&error, ErrorKind::Driver, &[&said, "the device is still usable"]);
            assert_eq!(error.cuda_code(), Some(209));
            x.accept_contents();
            drop(stream.launch(of_small_blocks(&x), config));
            drop(stream.launch(for_pascal_too(&x), config));
            assert_eq!(stream.read(&x).blocking_wait().unwrap(), [3.0, 1.0, 1.0, 1.0]);
        });
    }
}

#[test]
fn ptx_that_the_driver_or_the_device_is_too_old_for_is_refused_with_the_versions() {
    in_child(&[("SOFTCUDA_DRIVER_VERSION", "12040")], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        let config = LaunchConfig::for_elements(4u32);
        let refused = |call, code: u32, parts: &[&str]| {
            let error = stream.launch(call, config).blocking_wait().unwrap_err();
            says(&error, ErrorKind::Driver, parts);
            assert_eq!(error.cuda_code(), Some(code));
            x.accept_contents();
        };
        refused(
            of_a_newer_isa(&x),
            222,
            &[
                "of_a_newer_isa cannot be loaded: its PTX is of version 8.7, which needs a driver for CUDA 12.8 or newer, and this \
                 one is for CUDA 12.4; update the driver, or compile it with CUDA 12.4 or older",
                "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
                "the device is still usable",
            ],
        );
        refused(
            for_a_newer_device(&x),
            209,
            &[
                "for_a_newer_device cannot be loaded: its PTX is for sm_90, and cuda:0 (software CUDA driver (not a GPU)) has \
                 compute capability 8.0; compile it for compute_80 or older",
                "the device is still usable",
            ],
        );
    });
}

#[test]
fn blocks_larger_than_the_device_code_takes_are_refused_with_both_numbers() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(64).unwrap();
        drop(stream.fill(&x, 1.0));
        stream.launch(of_small_blocks(&x), LaunchConfig::linear(1, 64)).blocking_wait().unwrap();
        let error =
            stream.launch(of_small_blocks(&x), LaunchConfig::linear(1, 65)).blocking_wait().unwrap_err();
        assert_eq!(error.cuda_code(), Some(1));
        says(
            &error,
            ErrorKind::Driver,
            &["blocks have 65 threads, and its device code allows at most 64 on cuda:0; launch \
                smaller blocks"],
        );
        x.accept_contents();
        assert_eq!(stream.read(&x).blocking_wait().unwrap()[0], 2.0);
    });
}

#[test]
fn clusters_are_refused_below_compute_capability_9() {
    in_child(&[("SOFTCUDA_CAPABILITY", "8.9")], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(64).unwrap();
        let config = LaunchConfig::linear(4, 16).with_cluster([2, 1, 1]);
        says(
            &stream.launch(kernels::relu(64, &x, &x), config).blocking_wait().unwrap_err(),
            ErrorKind::Driver,
            &[
                "relu on stream",
                "clusters of blocks need compute capability 9.0, and cuda:0 (software CUDA driver (not a GPU)) has 8.9; launch it \
                 without clusters",
            ],
        );
        // Clears the mark of the refused write, so that the capture fails for its own reason.
        x.accept_contents();
        let captured = stream.capture(|s| s.launch(kernels::relu(64, &x, &x), config).queued());
        says(&captured.unwrap_err(), ErrorKind::Driver, &["clusters of blocks need compute capability 9.0"]);
    });
}

#[test]
fn blocks_of_a_cluster_read_each_others_shared_memory() {
    in_child(&[("SOFTCUDA_CAPABILITY", "9.0")], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<u32>(8).unwrap();
        let config = LaunchConfig::linear(8, 1);
        // The kernel itself says how large its clusters are.
        for config in [config, config.with_cluster([2, 1, 1])] {
            drop(stream.fill(&x, 9));
            stream.launch(in_pairs(&x), config).blocking_wait().unwrap();
            assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1, 0, 3, 2, 5, 4, 7, 6]);
        }
        says(
            &stream.launch(in_pairs(&x), config.with_cluster([4, 1, 1])).blocking_wait().unwrap_err(),
            ErrorKind::Driver,
            &["in_pairs on stream", "CUDA_ERROR_INVALID_CLUSTER_SIZE", "the device is still usable"],
        );
    });
}

#[test]
fn clusters_and_cooperative_launches_reach_the_driver_and_bad_ones_are_refused() {
    in_child(&[("SOFTCUDA_CAPABILITY", "9.0")], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(4096).unwrap();
        drop(stream.fill(&x, -1.0));
        let launch = |config| stream.launch(kernels::relu(4096, &x, &x), config);
        let counted = |config| {
            let (calls, done) = calls_in([c"cuLaunchKernel", c"cuLaunchKernelEx"], || launch(config));
            x.accept_contents();
            done.blocking_wait().map(|()| calls)
        };
        let config = LaunchConfig::linear(16, 256);
        assert_eq!(counted(config).unwrap(), [1, 0]);
        assert_eq!(counted(config.with_cluster([4, 1, 1])).unwrap(), [0, 1]);
        assert_eq!(counted(config.cooperatively()).unwrap(), [0, 1]);
        assert_eq!(counted(config.with_cluster([2, 1, 1]).cooperatively()).unwrap(), [0, 1]);
        says(
            &counted(config.with_cluster([3, 1, 1])).unwrap_err(),
            ErrorKind::InvalidArgument,
            &["relu on stream", "clusters of [3, 1, 1] blocks do not divide a grid of [16, 1, 1]"],
        );
        says(
            &counted(config.with_cluster([16, 1, 1])).unwrap_err(),
            ErrorKind::InvalidArgument,
            &["use clusters of 1 to 8 blocks that divide it"],
        );
        // These blocks do not fit on the device at the same time, which only the driver knows.
        says(
            &counted(LaunchConfig::linear(100_000, 1024).cooperatively()).unwrap_err(),
            ErrorKind::Driver,
            &["CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "the device is still usable"],
        );
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; 4096]);
    });
}

#[test]
fn a_suggested_configuration_fills_the_device_and_no_more() {
    in_child(&[], || {
        let device = cuda(0);
        let large = device.suggest_config(&kernels::RELU, 1 << 30, 0).unwrap();
        let small = device.suggest_config(&kernels::RELU, 1000, 0).unwrap();
        large.check("relu").unwrap();
        assert_eq!(large.block, small.block);
        assert_eq!(large.threads(), 16 * 2048, "as many threads as the multiprocessors run at once");
        assert_eq!(small.grid[0], 1000u32.div_ceil(small.block[0]));
        assert_eq!(device.suggest_config(&kernels::RELU, 0, 0).unwrap().grid, [1, 1, 1]);
        let shared = device.suggest_config(&kernels::RELU, 1 << 30, 32 << 10).unwrap();
        assert_eq!(shared.shared_bytes, 32 << 10);
        let most = device.properties().shared_bytes_per_block;
        let all = device.suggest_config(&kernels::RELU, 1 << 30, most).unwrap();
        assert_eq!((all.shared_bytes, all.grid[0]), (most, 16), "one block a multiprocessor");
        says(
            &device.suggest_config(&kernels::RELU, 8, most + 1).unwrap_err(),
            ErrorKind::Driver,
            &["suggest_config failed on cuda:0: 101377 bytes of dynamic shared memory a block \
                were requested, and a block has at most 101376"],
        );

        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(1000).unwrap();
        drop(stream.fill(&x, -2.0));
        drop(stream.launch(kernels::relu(1000, &x, &x), small));
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; 1000]);
        says(
            &device.suggest_config(&CPU_ONLY, 8, 0).unwrap_err(),
            ErrorKind::Driver,
            &["cpu_only cannot be loaded: it has no device code, only a CPU form"],
        );
    });
}

#[test]
fn kernels_of_one_text_share_a_module_and_its_variables() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        // Awaited, so that no later op is held back behind the copy, which may wait for page-locked
        // memory.
        stream.write(&x, &ramp(4)).blocking_wait().unwrap();
        let ([modules], ()) = calls_in([c"cuModuleLoadDataEx"], || {
            for _ in 0..3 {
                drop(stream.launch(scale_by_table(4, &x), LaunchConfig::for_elements(4u32)));
                drop(stream.launch(count_calls(&x), LaunchConfig::for_elements(1u32)));
            }
        });
        assert_eq!(modules, 1);
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [7.0, 8.0, 16.0, 24.0]);

        let factors = stream.global::<f32>(&SCALE, "factors").unwrap();
        assert_eq!(stream.read(&factors).blocking_wait().unwrap(), [1.5, 2.0, 3.0, 4.0]);
        drop(stream.write(&factors, &[5.0, 6.0, 7.0, 8.0]));
        let again = stream.global::<f32>(&COUNT, "factors").unwrap();
        assert_eq!(again.device_ptr(), factors.device_ptr());
        assert_eq!(stream.read(&again).blocking_wait().unwrap(), [5.0, 6.0, 7.0, 8.0]);
        let limit = stream.global::<u64>(&SCALE, "limit").unwrap();
        assert_eq!(stream.read(&limit).blocking_wait().unwrap(), [7]);

        // For the order check the variable belongs to this stream, like memory that was allocated
        // on it.
        let other = stream.device().new_stream().unwrap();
        drop(stream.fill(&factors, 1.0));
        says(
            &other.read(&factors).blocking_wait().unwrap_err(),
            ErrorKind::Unordered,
            &["reads memory that fill on stream"],
        );
        other.wait_for(&factors);
        assert_eq!(other.read(&factors).blocking_wait().unwrap(), [1.0; 4]);
    });
}

#[test]
fn a_variable_that_is_not_there_or_of_another_size_is_refused() {
    in_child(&[], || {
        let stream = cuda(0).stream().label("globals").build().unwrap();
        says(
            &stream.global::<f32>(&SCALE, "nothing").unwrap_err(),
            ErrorKind::Driver,
            &["global on stream \"globals\" (tests/cuda/device/kernels.rs:", "\"nothing\"", "scale_by_table"],
        );
        assert_eq!(stream.global::<u8>(&SCALE, "factors").unwrap().len(), 16);
        says(
            &stream.global::<u64>(&SCALE, "odd").unwrap_err(),
            ErrorKind::Shape,
            &["odd has 12 bytes, not a whole number of u64 of 8 bytes; request it with its own \
                type"],
        );
        says(
            &stream.global::<f32>(&SCALE, "a\0b").unwrap_err(),
            ErrorKind::Driver,
            &["is not a variable's name"],
        );
    });
}

#[test]
fn the_cpu_device_has_no_modules() {
    let (_runtime, _, [stream]) = crate::support::streams(["host"]);
    says(
        &stream.global::<f32>(&SCALE, "factors").unwrap_err(),
        ErrorKind::Unsupported,
        &["global on stream \"host\"", "cpu:0 runs the CPU form of"],
    );
}

#[test]
fn machine_images_are_loaded_as_they_are() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        drop(stream.write(&x, &ramp(4)));
        let config = LaunchConfig::for_elements(4u32);
        drop(stream.launch(negate_image(&x), config));
        drop(stream.launch(decrement_image(&x), config));
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [-1.0, -2.0, -3.0, -4.0]);
    });
}

#[test]
fn device_code_that_cannot_be_loaded_is_refused_and_the_device_goes_on() {
    in_child(&[], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        let config = LaunchConfig::for_elements(4u32);
        let refused = |call, code: Option<u32>, parts: &[&str]| {
            let error = stream.launch(call, config).blocking_wait().unwrap_err();
            says(&error, ErrorKind::Driver, parts);
            assert_eq!(error.cuda_code(), code);
            x.accept_contents();
        };
        refused(
            no_image(&x),
            Some(218),
            &["no_image cannot be loaded: cuModuleLoadDataEx returned CUDA_ERROR_INVALID_PTX"],
        );
        refused(
            cut_off(&x),
            Some(218),
            &[
                "cut_off cannot be loaded: cuModuleLoadDataEx returned CUDA_ERROR_INVALID_PTX",
                "):\n",
                "the device is still usable",
            ],
        );
        refused(
            cpu_only(&x),
            None,
            &[
                "cpu_only cannot be loaded: it has no device code, only a CPU form",
                "the device is still usable",
            ],
        );
        // None of them is tried again.
        let ([loads], ()) = calls_in([c"cuModuleLoadDataEx"], || {
            refused(no_image(&x), Some(218), &["no_image cannot be loaded: cuModuleLoadDataEx returned"]);
            refused(cut_off(&x), Some(218), &["cut_off cannot be loaded: cuModuleLoadDataEx returned"]);
        });
        assert_eq!((loads, stream.issued()), (0, 0));
        drop(stream.fill(&x, 2.0));
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [2.0; 4]);
    });
}
