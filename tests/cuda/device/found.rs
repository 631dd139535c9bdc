//! How CUDA devices are found, and the errors if there are none.

use crate::device::cuda;
use crate::support::says;
use crate::support::software::in_child;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tracing_subscriber::layer::{Context, SubscriberExt};
use warpline::prelude::*;

/// A layer that records the fields of every event as text.
#[derive(Clone, Default)]
pub(crate) struct Lines(pub(crate) Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Lines {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{field}: {value:?}"));
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

fn lines_of<R>(f: impl FnOnce() -> R) -> (R, String) {
    let lines = Lines::default();
    let result = tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()), f);
    let text = lines.0.lock().unwrap().join("\n");
    (result, text)
}

/// Returns the number of the device among those of the machine. The UUIDs of the software CUDA
/// driver end with it.
fn machine_number(device: &Device) -> u8 {
    device.properties().uuid.expect("a CUDA device has one")[15]
}

#[test]
fn without_a_driver_cuda_is_an_error_that_says_what_was_looked_for_and_best_is_the_cpu() {
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-driver-here");
    std::fs::create_dir_all(&empty).unwrap();
    let empty = empty.to_str().unwrap();
    in_child(&[("LD_LIBRARY_PATH", empty)], || {
        // SAFETY: `dlopen` runs the initialisers of the library, here those of a CUDA driver.
        if !unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) }.is_null() {
            println!("the loader finds a driver of this machine's: nothing to see here");
            return;
        }
        let asked = ["no NVIDIA driver was found: looked for libcuda.so.1 where the loader looks", empty];
        assert!(!warpline::cuda::is_available());
        says(&warpline::cuda::device_count().unwrap_err(), ErrorKind::NoSuchDevice, &asked);
        let error = Device::open("cuda:0").unwrap_err();
        says(&error, ErrorKind::NoSuchDevice, &asked);
        says(&error, ErrorKind::NoSuchDevice, &["there is no cuda:0: ", "; \"cpu\" needs no GPU"]);
        assert_eq!(Device::all_cuda().unwrap(), []);
        let (device, said) = lines_of(|| Device::best().unwrap());
        assert_eq!(device.id(), DeviceId::Cpu(0));
        assert!(said.contains("using cpu:0") && said.contains("no NVIDIA driver was found"), "{said}");
        assert_eq!(device.new_stream().unwrap().call(|| 7).blocking_wait().unwrap(), 7);
    });
}

#[test]
fn a_toolkits_stub_does_not_stand_in_the_drivers_way() {
    let folders = [warpline_softcuda::stubs_dir().unwrap(), warpline_softcuda::library_dir().unwrap()];
    let path = std::env::join_paths(folders).unwrap();
    in_child(&[("LD_LIBRARY_PATH", path.to_str().unwrap())], || {
        let stream = cuda(0).new_stream().unwrap();
        let x = stream.alloc::<f32>(4).unwrap();
        drop(stream.fill(&x, 1.5));
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1.5; 4]);
    });
}

#[test]
fn a_stub_that_bears_the_drivers_name_is_named_in_the_error() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("toolkit/stubs");
    std::fs::create_dir_all(&folder).unwrap();
    // Made under another name, because other processes may be running this test.
    let fresh = folder.join(format!("new-{}", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(warpline_softcuda::stubs_dir().unwrap().join("libcuda.so"), &fresh).unwrap();
    std::fs::rename(&fresh, folder.join("libcuda.so.1")).unwrap();
    in_child(&[("LD_LIBRARY_PATH", folder.to_str().unwrap())], || {
        let file = std::env::var("LD_LIBRARY_PATH").unwrap() + "/libcuda.so.1";
        let parts = [
            "there is no cuda:0: the libcuda.so.1 that the loader finds, ",
            &file,
            ", is a CUDA toolkit's stub, which is only for linking; remove its folder from \
            LD_LIBRARY_PATH",
        ];
        says(&Device::open("cuda:0").unwrap_err(), ErrorKind::NoSuchDevice, &parts);
    });
}

#[test]
fn a_driver_that_is_too_old_is_refused_with_both_versions() {
    in_child(&[("SOFTCUDA_DRIVER_VERSION", "11080")], || {
        let asked = [
            "there is no cuda:0: the NVIDIA driver is for CUDA 11.8; Warpline needs one for CUDA 12.0 (525) or newer; update \
             it",
            "\"cpu\" needs no GPU",
        ];
        says(&Device::open("cuda:0").unwrap_err(), ErrorKind::NoSuchDevice, &asked);
        assert!(!warpline::cuda::is_available());
        let (device, said) = lines_of(|| Device::best().unwrap());
        assert_eq!(device.id(), DeviceId::Cpu(0));
        assert!(said.contains("the NVIDIA driver is for CUDA 11.8"), "{said}");
        says(
            &Device::all_cuda().unwrap_err(),
            ErrorKind::NoSuchDevice,
            &["the NVIDIA driver is for CUDA 11.8"],
        );
    });
}

#[test]
fn best_says_once_on_stderr_that_it_is_not_the_gpu() {
    let said = in_child(&[("SOFTCUDA_DRIVER_VERSION", "11080")], || {
        (0..3).for_each(|_| assert_eq!(Device::best().unwrap().id(), DeviceId::Cpu(0)));
    });
    let line = "warpline: using cpu:0: there is no cuda:0: the NVIDIA driver is for CUDA 11.8";
    assert_eq!(said.matches(line).count(), 1, "{said}");
}

#[test]
fn best_says_nothing_on_stderr_where_devices_are_hidden() {
    let said = in_child(&[("CUDA_VISIBLE_DEVICES", "")], || {
        assert_eq!(Device::best().unwrap().id(), DeviceId::Cpu(0));
        assert_eq!(Device::all_cuda().unwrap(), []);
    });
    assert!(!said.contains("warpline:"), "{said}");
}

#[test]
fn a_device_that_is_too_old_is_refused_with_both_capabilities() {
    in_child(&[("SOFTCUDA_CAPABILITY", "5.2")], || {
        let asked = [
            "there is no cuda:1: cuda:1 (software CUDA driver (not a GPU)) has compute capability 5.2; Warpline needs 6.0 \
             (Pascal) or newer; use another device",
        ];
        says(&Device::open("cuda:1").unwrap_err(), ErrorKind::NoSuchDevice, &asked);
        let (device, said) = lines_of(|| Device::best().unwrap());
        assert_eq!(device.id(), DeviceId::Cpu(0));
        assert!(said.contains("has compute capability 5.2"), "{said}");
    });
}

#[test]
fn where_there_is_a_driver_best_is_the_first_gpu() {
    in_child(&[], || {
        assert!(warpline::cuda::is_available());
        assert_eq!(warpline::cuda::device_count().unwrap(), 2);
        let (best, said) = lines_of(|| Device::best().unwrap());
        assert_eq!((best.id(), said.as_str()), (DeviceId::Cuda(0), ""));
        assert_eq!(best, cuda(0), "one device of a runtime, however often it is asked for");
        let all = Device::all_cuda().unwrap();
        assert_eq!(all.iter().map(Device::id).collect::<Vec<_>>(), [DeviceId::Cuda(0), DeviceId::Cuda(1)]);
        assert_eq!(all.iter().map(machine_number).collect::<Vec<_>>(), [0, 1]);
    });
}

#[test]
fn a_number_that_no_device_has_is_an_error_that_says_how_many_there_are() {
    in_child(&[], || {
        let text =
            "there is no cuda:5: the NVIDIA driver shows 2 devices, cuda:0 to cuda:1; \"cpu\" needs no GPU";
        let error = Device::open("cuda:5").unwrap_err();
        says(&error, ErrorKind::NoSuchDevice, &[text]);
        assert_eq!(error.cuda_code(), None, "no driver call failed");
        assert!(std::error::Error::source(&error).is_none());
    });
}

#[test]
fn the_only_device_is_named() {
    in_child(&[("SOFTCUDA_DEVICES", "1")], || {
        let text = "there is no cuda:1: the NVIDIA driver shows 1 device, cuda:0";
        says(&Device::open("cuda:1").unwrap_err(), ErrorKind::NoSuchDevice, &[text]);
    });
}

#[test]
fn visible_devices_are_numbered_as_they_are_listed() {
    in_child(&[("CUDA_VISIBLE_DEVICES", "1,0")], || {
        assert_eq!([cuda(0), cuda(1)].map(|device| machine_number(&device)), [1, 0]);
    });
}

#[test]
fn a_list_ends_at_the_first_number_that_no_device_has() {
    in_child(&[("CUDA_VISIBLE_DEVICES", "1,7,0")], || {
        let all = Device::all_cuda().unwrap();
        assert_eq!(all.iter().map(machine_number).collect::<Vec<_>>(), [1]);
        let parts = [
            "shows 1 device, cuda:0 (CUDA_VISIBLE_DEVICES is \"1,7,0\", which renumbers the devices from 0; entry 2 of \
                 the list, \"7\", is the number of no GPU: the last of this machine is 1, so the list ends before it)",
        ];
        says(&Device::open("cuda:1").unwrap_err(), ErrorKind::NoSuchDevice, &parts);
    });
}

#[test]
fn a_device_that_a_driver_call_keeps_closed_has_the_code_of_that_call() {
    for plan in
        ["cuInit:1:999", "cuDeviceGetCount:1:3", "cuDevicePrimaryCtxRetain:1:2", "cuDeviceGetName:1:101"]
    {
        in_child(&[("SOFTCUDA_FAIL", plan)], || {
            let error = Device::open("cuda:0").unwrap_err();
            let plan = std::env::var("SOFTCUDA_FAIL").unwrap();
            let call = plan.split(':').next().unwrap();
            says(&error, ErrorKind::NoSuchDevice, &["there is no cuda:0: ", call, "; \"cpu\" needs no GPU"]);
            assert_eq!(error.cuda_code().map(|code| code.to_string()).as_deref(), plan.split(':').nth(2));
            let source = std::error::Error::source(&error).expect("the driver's failure").to_string();
            assert!(source.contains(call), "{source}");
            if call == "cuInit" {
                assert_eq!(warpline::cuda::device_count().unwrap_err().cuda_code(), Some(999));
            }
        });
    }
}

/// Sets `CUDA_VISIBLE_DEVICES` for this process, or removes it.
fn set_visible_devices(list: Option<&str>) {
    match list {
        // SAFETY: `set_var` needs that no other thread uses the environment except through the
        // standard library: only the runtime's threads and those of the test harness run.
        Some(list) => unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", list) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var("CUDA_VISIBLE_DEVICES") },
    }
}

const REMEDY: &str = "when the NVIDIA driver was initialised, which reads it only then; set it before \
    the first use of a CUDA device, or on the command line";

#[test]
fn a_list_that_is_set_after_the_driver_was_initialised_is_reported_with_both_values() {
    in_child(&[("SOFTCUDA_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,0")], || {
        let (count, said) = lines_of(|| warpline::cuda::device_count().unwrap());
        assert_eq!((count, said.as_str()), (2, ""), "nothing has changed yet");
        set_visible_devices(Some("1"));
        let changed = format!("CUDA_VISIBLE_DEVICES is \"1\" now and was \"2,0\" {REMEDY}");
        let error = Device::open("cuda:2").unwrap_err();
        let text = format!("shows 2 devices, cuda:0 to cuda:1; {changed}; \"cpu\" needs no GPU");
        says(&error, ErrorKind::NoSuchDevice, &[&text]);
        let (device, said) = lines_of(|| cuda(0));
        assert_eq!(machine_number(&device), 2, "the driver has the list that it read");
        assert_eq!(said.matches(&changed).count(), 1, "{said}");
        let (_, said) = lines_of(|| (cuda(1), warpline::cuda::device_count().unwrap()));
        assert!(!said.contains("CUDA_VISIBLE_DEVICES"), "once for each process: {said}");
        set_visible_devices(Some("2,0"));
        let error = Device::open("cuda:2").unwrap_err().to_string();
        assert!(!error.contains("when the NVIDIA driver was initialised"), "{error}");
    });
}

#[test]
fn devices_that_are_counted_after_the_list_was_set_too_late_are_counted_with_a_warning() {
    let said = in_child(&[], || {
        assert!(warpline::cuda::is_available());
        set_visible_devices(Some("1"));
        (0..3).for_each(|_| assert_eq!(warpline::cuda::device_count().unwrap(), 2));
    });
    let line = format!("warpline: CUDA_VISIBLE_DEVICES is \"1\" now and was not set {REMEDY}");
    assert_eq!(said.matches(&line).count(), 1, "{said}");
}

#[test]
fn a_list_that_is_removed_after_it_hid_all_devices_is_reported() {
    in_child(&[("CUDA_VISIBLE_DEVICES", "")], || {
        assert!(!warpline::cuda::is_available());
        set_visible_devices(None);
        let changed = format!("CUDA_VISIBLE_DEVICES is not set now and was \"\" {REMEDY}");
        says(&Device::open("cuda:0").unwrap_err(), ErrorKind::NoSuchDevice, &[&changed]);
        says(&warpline::cuda::device_count().unwrap_err(), ErrorKind::NoSuchDevice, &[&changed]);
        let (device, said) = lines_of(|| Device::best().unwrap());
        assert_eq!(device.id(), DeviceId::Cpu(0));
        assert!(said.contains(&changed), "{said}");
    });
}

/// Needs NVML, no MIG, no CUDA_VISIBLE_DEVICES, and a process of its own. The software driver also
/// acts as NVML, so only a GPU's shows that its functions are those that are called.
#[test]
#[ignore = "needs a GPU"]
fn nvml_finds_the_devices_that_the_driver_shows() {
    let likely = warpline::cuda::likely_device_count();
    assert_eq!(likely, warpline::cuda::device_count().unwrap() as usize);
    for ordinal in 0..likely as u32 {
        let text = cuda(ordinal).properties().uuid_text().unwrap();
        set_visible_devices(Some(&text));
        assert_eq!(warpline::cuda::likely_device_count(), 1, "{text}");
    }
    // Without NVML, no UUID would be known, and this one would count.
    set_visible_devices(Some("GPU-00000000-0000-0000-0000-000000000001"));
    assert_eq!(warpline::cuda::likely_device_count(), 0);
}

fn hidden(list: &str, problem: &str) {
    assert_eq!(warpline::cuda::likely_device_count(), 0);
    assert!(!warpline::cuda::is_available());
    let list =
        format!("the NVIDIA driver shows no device, and CUDA_VISIBLE_DEVICES is \"{list}\"; {problem}");
    let error = Device::open("cuda:0").unwrap_err();
    says(&error, ErrorKind::NoSuchDevice, &["there is no cuda:0", &list]);
    assert_eq!(error.cuda_code(), Some(100));
    assert_eq!(Device::all_cuda().unwrap(), []);
    let (device, said) = lines_of(|| Device::best().unwrap());
    assert_eq!(device.id(), DeviceId::Cpu(0));
    assert!(said.contains(&list), "{said}");
}

#[test]
fn an_empty_list_hides_all_devices_and_the_error_names_it() {
    in_child(&[("CUDA_VISIBLE_DEVICES", "")], || hidden("", "an empty list hides every device"));
}

#[test]
fn a_list_of_numbers_that_no_device_has_hides_all_devices() {
    in_child(&[("CUDA_VISIBLE_DEVICES", "7")], || {
        hidden("7", "entry 1 of the list, \"7\", is the number of no GPU: the last of this machine is 1");
    });
}

#[test]
fn a_list_that_names_a_device_twice_hides_all_devices() {
    in_child(&[("CUDA_VISIBLE_DEVICES", "0,0")], || {
        hidden(
            "0,0",
            "entry 2 of the list, \"0\", names the same GPU as entry 1, and a GPU that is named twice hides \
             every device",
        );
    });
}

#[test]
fn properties_say_what_sort_of_device_it_is() {
    in_child(&[("SOFTCUDA_MEMORY", "1073741824")], || {
        let device = cuda(0);
        let properties = device.properties();
        assert_eq!(properties.name, "software CUDA driver (not a GPU)");
        assert_eq!((properties.total_bytes, properties.compute_capability), (1 << 30, Some((8, 0))));
        assert_eq!((properties.multiprocessors, properties.shared_bytes_per_block), (16, 99 << 10));
        assert!(properties.cooperative_launch && properties.completion_words);
        assert_ne!(properties.uuid, cuda(1).properties().uuid);
        let text = properties.uuid_text().unwrap();
        assert_eq!(text, "GPU-50736f66-7463-7564-612d-6770752d0000");
        set_visible_devices(Some(&text));
        assert_eq!(warpline::cuda::likely_device_count(), 1);

        let free = device.free_bytes().unwrap();
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<u8>(100 << 20).unwrap();
        assert!(device.free_bytes().unwrap() <= free - (100 << 20));
        drop(x);
        stream.synchronize().blocking_wait().unwrap();
        assert_eq!(device.empty_cache(), 100 << 20);
        assert_eq!(device.free_bytes().unwrap(), free);
    });
}

#[test]
fn properties_say_whether_the_device_writes_its_progress() {
    in_child(&[("SOFTCUDA_NO_MEMOPS", "1")], || {
        let (device, said) = lines_of(|| cuda(0));
        assert!(!device.properties().completion_words);
        assert!(said.contains("completion words are not used; events are polled instead"), "{said}");
    });
}
