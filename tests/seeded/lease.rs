//! A lease whose work is held keeps its place in the pool, whatever turns other polls take.

use warpline::prelude::*;

#[test]
fn the_place_of_a_lease_is_free_only_when_its_work_is_over() {
    let runtime = Runtime::builder().schedule(Schedule::Seeded(1)).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let pool = device.stream_pool(2).unwrap();
    let lease = pool.try_lease().unwrap().unwrap();
    let gate = lease.hold().unwrap();
    drop(lease);
    // Turns that find nothing to run wake every waiter.
    let other = device.new_stream().unwrap();
    for _ in 0..10 {
        let _ = other.call(|| ()).query().unwrap();
        let _ = device.synchronize().query().unwrap();
    }
    assert_eq!(pool.available(), 1, "the gate still holds the lease's stream");
    gate.open();
    device.synchronize().blocking_wait().unwrap();
    assert_eq!(pool.available(), 2);
}
