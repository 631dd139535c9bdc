//! The devices that `CUDA_VISIBLE_DEVICES` leaves visible, and their order.

use crate::device::uuid_text;

/// Returns the physical ordinals of the visible devices, out of `count` devices.
///
/// The list ends at the first entry that names no device. An entry is an ordinal or a prefix of
/// exactly one device's UUID. A device named twice makes the whole list invalid: no device is
/// visible.
pub(crate) fn visible_devices(variable: Option<&str>, count: u32) -> Vec<u32> {
    let Some(list) = variable else { return (0..count).collect() };
    let mut visible = Vec::new();
    for entry in list.split(',') {
        let Some(device) = named(entry.trim(), count) else { break };
        if visible.contains(&device) {
            return Vec::new();
        }
        visible.push(device);
    }
    visible
}

fn named(entry: &str, count: u32) -> Option<u32> {
    if entry.starts_with("GPU-") {
        let mut fitting = (0..count).filter(|device| uuid_text(*device).starts_with(entry));
        let device = fitting.next()?;
        return fitting.next().is_none().then_some(device);
    }
    entry.parse().ok().filter(|device| *device < count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_orders_and_ends_at_what_names_no_device() {
        for (variable, visible) in [
            (None, &[0, 1, 2, 3][..]),
            (Some("2,0"), &[2, 0]),
            (Some(" 3 , 1 "), &[3, 1]),
            (Some("1,7,0"), &[1]),
            (Some("-1"), &[]),
            (Some("0,-1,1"), &[0]),
            (Some(""), &[]),
            (Some("1,none,2"), &[1]),
            (Some("0,1,0"), &[]),
        ] {
            assert_eq!(visible_devices(variable, 4), visible, "{variable:?}");
        }
    }

    #[test]
    fn a_uuid_names_a_device_if_it_names_only_one() {
        let second = uuid_text(1);
        assert_eq!(visible_devices(Some(&second), 4), [1]);
        assert_eq!(visible_devices(Some("GPU-"), 4), [0u32; 0]);
        assert_eq!(visible_devices(Some("GPU-"), 1), [0]);
    }
}
