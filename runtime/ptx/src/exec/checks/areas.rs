//! The memory outside of blocks that a checked launch may touch, with what is known of it.

use super::super::memory::{Region, Regions};
use super::bits::Bits;
use super::report::NamedByte;
use super::shadow::Words;

/// The bytes of an area of memory that no region declares.
const CHUNK: u64 = 1 << 16;

/// Memory with one set of records: regions that share 16 aligned bytes, or a chunk of memory that
/// no region declares.
#[derive(Debug)]
pub(super) struct Area {
    /// A multiple of 16.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The records of each word. Empty if no access can race.
    pub(super) words: Words,
    /// The bytes that are defined, unless all are.
    pub(super) defined: Option<Bits>,
}

/// All areas that are known, by their addresses.
#[derive(Debug, Default)]
pub(super) struct Areas {
    areas: Vec<Area>,
    /// The index of the area that the last search found. The next search tries it first.
    last: usize,
    regions: Vec<Region>,
    /// True if there is memory that no region declares.
    is_open: bool,
    races: bool,
}

impl Areas {
    pub(super) fn new(regions: &Regions, races: bool, init: bool) -> Self {
        let is_open = regions.is_open();
        let mut sorted: Vec<Region> = regions.list().to_vec();
        sorted.sort_by_key(|region| region.start);
        let mut areas: Vec<Area> = Vec::new();
        let mut first = 0;
        while first < sorted.len() {
            // Regions that share bytes share an area, and so do those that share 16 aligned ones.
            let start = sorted[first].start / 16 * 16;
            let (mut end, mut after) = (sorted[first].start + sorted[first].len_bytes, first + 1);
            while after < sorted.len() && sorted[after].start / 16 * 16 < end {
                end = end.max(sorted[after].start + sorted[after].len_bytes);
                after += 1;
            }
            let members = &sorted[first..after];
            // Where bounds are not checked, a launch may write what it should only read.
            let is_watched = races && (is_open || members.iter().any(|region| region.is_writable));
            let words = match is_watched {
                true => Words::new((end - start).div_ceil(4) as usize),
                false => Words::default(),
            };
            let defined = (init && members.iter().any(|region| region.is_undefined)).then(|| {
                let mut bits = Bits::new(end - start);
                for region in members.iter().filter(|region| !region.is_undefined) {
                    bits.set_all(region.start - start, region.start + region.len_bytes - start);
                }
                bits
            });
            areas.push(Area { start, end, words, defined });
            first = after;
        }
        Areas { areas, last: 0, regions: sorted, is_open, races }
    }

    /// Returns the area of an address. Memory that no region declares becomes an area when it is
    /// used first.
    #[inline(always)]
    pub(super) fn of(&mut self, address: u64) -> Option<&mut Area> {
        let has = |area: &Area| area.start <= address && address < area.end;
        if !self.areas.get(self.last).is_some_and(has) {
            self.last = self.find(address)?;
        }
        Some(&mut self.areas[self.last])
    }

    #[inline(never)]
    fn find(&mut self, address: u64) -> Option<usize> {
        let at = self.areas.partition_point(|area| area.start <= address);
        if at > 0 && address < self.areas[at - 1].end {
            return Some(at - 1);
        }
        if !self.is_open || !self.races {
            return None;
        }
        let chunk = address / CHUNK * CHUNK;
        let start = if at > 0 { chunk.max(self.areas[at - 1].end.next_multiple_of(16)) } else { chunk };
        let end = (chunk + CHUNK).min(self.areas.get(at).map_or(u64::MAX, |area| area.start));
        let words = Words::new((end - start).div_ceil(4) as usize);
        self.areas.insert(at, Area { start, end, words, defined: None });
        Some(at)
    }

    /// Returns the region that contains an address, or the bare address if none does.
    pub(super) fn place(&self, address: u64) -> NamedByte {
        let has = |region: &&Region| region.start <= address && address - region.start < region.len_bytes;
        match self.regions.iter().find(has) {
            Some(region) => NamedByte::Region { region: region.clone(), address },
            None => NamedByte::Address(address),
        }
    }

    /// Returns an undefined region with its first undefined element and the number of its undefined
    /// bytes.
    pub(super) fn unwritten(&mut self) -> Option<(Region, u64, u64)> {
        let undefined: Vec<Region> = self
            .regions
            .iter()
            .filter(|region| region.is_undefined && region.len_bytes > 0)
            .cloned()
            .collect();
        undefined.into_iter().find_map(|region| {
            let area = self.of(region.start)?;
            let from = region.start - area.start;
            let (first, count) = area.defined.as_ref()?.missing(from, from + region.len_bytes)?;
            let element = (first - from) / u64::from(region.element_bytes.max(1));
            Some((region, element, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_in_one_word_of_records_have_one_area() {
        let region = |name: &str, start| Region { is_writable: true, ..Region::new(name, start, 12, 4) };
        let y = Region { is_undefined: true, ..region("y", 0x100c) };
        let regions = Regions::new(vec![region("x", 0x1000), y, region("z", 0x1020)]);
        let mut areas = Areas::new(&regions, true, true);
        let mut of = |address| areas.of(address).map(|area| (area.start, area.end)).unwrap();
        assert_eq!([0x1008, 0x100c, 0x1017].map(&mut of), [(0x1000, 0x1018); 3]);
        assert_eq!(of(0x1020), (0x1020, 0x102c));
        let defined = areas.of(0x1000).unwrap().defined.as_ref().unwrap();
        assert_eq!((defined.are_set(0, 12), defined.of(12, 4)), (true, 0));
        let (region, element, bytes) = areas.unwritten().unwrap();
        assert_eq!((region.name.as_str(), element, bytes), ("y", 0, 12));
    }
}
