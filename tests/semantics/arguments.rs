//! How a program selects its device: by arguments, by what is available, and by
//! `CUDA_VISIBLE_DEVICES`.

use crate::support::software::in_child;
use crate::support::{runtime, says};
use clap::{CommandFactory, Parser, error};
use warpline::prelude::*;
use warpline::{DeviceArgs, cuda};

/// A program's own description.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    device: DeviceArgs,
}

fn parsed(arguments: &[&str]) -> DeviceArgs {
    Options::try_parse_from([&["program"], arguments].concat()).unwrap().device
}

fn refused(arguments: &[&str]) -> clap::Error {
    Options::try_parse_from([&["program"], arguments].concat()).unwrap_err()
}

/// Runs `body` without a CUDA device: no driver is found, or it shows no device.
fn without_cuda(body: impl FnOnce()) {
    let empty = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-driver-here");
    std::fs::create_dir_all(&empty).unwrap();
    in_child(&[("LD_LIBRARY_PATH", empty.to_str().unwrap()), ("CUDA_VISIBLE_DEVICES", "")], body);
}

/// The program of X4 and X7, with and without its flag: the boolean, and the device.
fn with_and_without_the_flag() -> [(bool, DeviceId); 2] {
    [&["--disable-cuda"][..], &[]].map(|arguments| {
        let device = parsed(arguments).device().unwrap().id();
        (matches!(device, DeviceId::Cuda(_)), device)
    })
}

/// X4 and X7: a flag that disables CUDA, as a boolean and as a device, where CUDA is available: set
/// it gives the CPU, and not set the GPU. The arguments name devices of the default runtime.
#[test]
fn the_flag_selects_the_cpu_where_cuda_is_available() {
    in_child(&[], || {
        assert!(cuda::is_available());
        assert_eq!(with_and_without_the_flag(), [(false, DeviceId::Cpu(0)), (true, DeviceId::Cuda(0))]);
    });
}

/// X4 and X7: the same program where CUDA is not available: the CPU with and without the flag. The
/// environment hides CUDA.
#[test]
fn the_flag_changes_nothing_where_cuda_is_not_available() {
    without_cuda(|| {
        assert!(!cuda::is_available());
        assert_eq!(with_and_without_the_flag(), [(false, DeviceId::Cpu(0)); 2]);
    });
}

/// X8, as far as it concerns tensors: an empty tensor on the device of the flag keeps its shape,
/// and X5: a tensor that is moved there gives the same values. The flag selects a device of the
/// default runtime.
#[test]
fn a_tensor_is_made_on_or_moved_to_the_device_of_the_flag() {
    in_child(&[], || {
        let values: Vec<f32> = (0..8 * 42).map(|n| n as f32).collect();
        let host = Device::open("cpu").unwrap();
        let results = [&["--disable-cuda"][..], &[]].map(|arguments| {
            let device = parsed(arguments).device().unwrap();
            let empty = Tensor::empty([8, 42], &device).queued().unwrap();
            assert_eq!((empty.shape(), empty.device()), (&[8, 42][..], device.clone()));
            let x = Tensor::from_host(&values, [8, 42], &host).to(&device).queued().unwrap();
            assert_eq!(x.device(), device);
            let result = (&x * 2.0).to_vec::<f32>().blocking_wait().unwrap();
            (device.id(), result)
        });
        assert_eq!(results[0].0, DeviceId::Cpu(0));
        assert_eq!(results[1].0, DeviceId::Cuda(0));
        assert_eq!(results[0].1, results[1].1);
        assert_eq!(results[0].1[335], 670.0);
    });
}

/// A named device is that one or an error, and the flag goes with no name.
#[test]
fn a_device_is_named_or_disabled_but_not_both() {
    in_child(&[], || {
        for (name, id) in [
            ("cpu", DeviceId::Cpu(0)),
            ("cpu:0", DeviceId::Cpu(0)),
            ("cuda", DeviceId::Cuda(0)),
            ("cuda:1", DeviceId::Cuda(1)),
        ] {
            assert_eq!(parsed(&["--device", name]).device().unwrap().id(), id);
        }
        // "cuda" is the current device, as in `Device::open`.
        Device::open("cuda:1").unwrap().enter(|| {
            assert_eq!(parsed(&["--device", "cuda"]).device().unwrap().id(), DeviceId::Cuda(1));
        });
        let missing = parsed(&["--device=cuda:2"]).device().unwrap_err();
        says(&missing, ErrorKind::NoSuchDevice, &["there is no cuda:2"]);

        let both = refused(&["--device", "cpu", "--disable-cuda"]);
        assert_eq!(both.kind(), error::ErrorKind::ArgumentConflict);
        let unknown = refused(&["--device", "cuda0"]);
        assert_eq!(unknown.kind(), error::ErrorKind::ValueValidation);
        assert!(unknown.to_string().contains("\"cuda0\" is not a device; write \"cuda:0\""), "{unknown}");
    });
}

#[test]
fn a_runtime_of_the_programs_own_gives_its_own_device() {
    let runtime = runtime(3);
    let device = parsed(&["--device", "cpu:2"]).device_of(&runtime).unwrap();
    assert_eq!(device, runtime.device(DeviceId::Cpu(2)).unwrap());
    let error = parsed(&["--device", "cpu:3"]).device_of(&runtime).unwrap_err();
    says(&error, ErrorKind::NoSuchDevice, &["this runtime has 3 CPU devices"]);
}

#[test]
fn the_help_keeps_the_programs_description_and_names_both_arguments() {
    let help = Options::command().render_long_help().to_string();
    assert!(help.starts_with("A program's own description"), "{help}");
    for part in ["--device <NAME>", "[default: the best one available]", "--disable-cuda"] {
        assert!(help.contains(part), "{help}");
    }
}

/// X24: the best device in one line, and a tensor moved to it: without a GPU it is the CPU, and no
/// error. The environment hides CUDA.
#[test]
fn the_best_device_without_a_gpu_is_the_cpu() {
    without_cuda(|| {
        let device = Device::best().unwrap();
        assert_eq!(device.id(), DeviceId::Cpu(0));
        let x = Tensor::ones([3], &Device::open("cpu").unwrap()).to(&device).queued().unwrap();
        assert_eq!(x.to_vec::<f32>().blocking_wait().unwrap(), [1.0; 3]);
        assert_eq!(Device::all_cuda().unwrap(), []);
    });
}

/// X24: the same line on a machine with a GPU. The best device is one of the default runtime.
#[test]
fn the_best_device_with_a_gpu_is_the_first_gpu() {
    in_child(&[], || {
        let device = Device::best().unwrap();
        assert_eq!(device.id(), DeviceId::Cuda(0));
        let x = Tensor::ones([3], &Device::open("cpu").unwrap()).to(&device).queued().unwrap();
        assert_eq!(x.to_vec::<f32>().blocking_wait().unwrap(), [1.0; 3]);
    });
}

/// Returns the number of the device among those of the machine. The UUIDs of the software CUDA
/// driver end with it.
fn machine_number(device: &Device) -> u8 {
    device.properties().uuid.expect("a CUDA device has one")[15]
}

/// X20: three of four GPUs visible: the count is 3, number 0 is the machine's GPU 1, and GPU 0
/// cannot be reached. The environment lists the visible GPUs.
#[test]
fn three_of_four_gpus_are_visible_and_renumbered() {
    in_child(&[("SOFTCUDA_DEVICES", "4"), ("CUDA_VISIBLE_DEVICES", "1,2,3")], || {
        assert_eq!(cuda::device_count().unwrap(), 3);
        let all = Device::all_cuda().unwrap();
        assert_eq!(all.iter().map(Device::ordinal).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(all.iter().map(machine_number).collect::<Vec<_>>(), [1, 2, 3]);
        let error = Device::open("cuda:3").unwrap_err();
        let parts = ["shows 3 devices, cuda:0 to cuda:2", "CUDA_VISIBLE_DEVICES is \"1,2,3\""];
        says(&error, ErrorKind::NoSuchDevice, &parts);
    });
}
