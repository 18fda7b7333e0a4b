//! Numbers of the ways in which probes pass the arguments of samples: a cookie has no room for them.

use std::path::PathBuf;

use jjleak_common::samples::{MAX_PRODUCERS, MAX_SITES, Site};

use super::{Error, Target};

/// Ways by number, and the files that have them.
#[derive(Debug, Default)]
pub(super) struct SampleSites {
    known: Vec<Site>,
    producers: Vec<PathBuf>,
}

impl SampleSites {
    /// The same targets with their numbers. Sites that pass arguments alike share one.
    pub(super) fn number(&mut self, targets: &[Target]) -> Result<Vec<Target>, Error> {
        let mut targets = targets.to_vec();
        for Target { file, site } in &mut targets {
            let Some(sample) = &mut site.sample else { continue };
            let producer = self.producers.iter().position(|known| known == file).unwrap_or_else(|| {
                self.producers.push(file.clone());
                self.producers.len() - 1
            });
            sample.site.producer = producer as u64 % MAX_PRODUCERS;
            let number =
                self.known.iter().position(|known| *known == sample.site).unwrap_or(self.known.len());
            if number == MAX_SITES as usize {
                return Err(Error::ManySampleSites);
            }
            if number == self.known.len() {
                self.known.push(sample.site);
            }
            sample.number = u16::try_from(number).unwrap_or(u16::MAX);
        }
        Ok(targets)
    }
}

#[cfg(test)]
mod tests {
    use jjleak_common::samples::Argument;

    use super::*;
    use crate::allocators::{Placement, ProbePoint, ProbeSite, SampleProbe, Stepping};

    fn target(file: &str, value: i64) -> Target {
        let argument = Argument { value, ..Argument::ZERO };
        let site = Site {
            pointer: argument,
            size: Argument::ZERO,
            weighted_bytes: Argument::ZERO,
            counts_points: 0,
            producer: 0,
        };
        let site = ProbeSite {
            names: vec!["alloc".to_owned()],
            point: ProbePoint::Sampled,
            signature: jjleak_common::cookie::Cookie::of_sample(jjleak_common::process::ProcessSlot(0), 0)
                .signature,
            placement: Placement { delta: 0, cfa_words: 0, stepping: Stepping::EmulatedBranch, inside: None },
            function_offset: 0,
            function_length: 1,
            sample: Some(SampleProbe { site, semaphore: None, number: 0 }),
        };
        Target { file: file.into(), site }
    }

    #[test]
    fn sites_of_a_file_that_pass_arguments_alike_share_a_number() {
        let mut sites = SampleSites::default();
        let targets = [target("a", 1), target("a", 1), target("a", 2), target("b", 1)];
        let numbered = sites.number(&targets).unwrap();
        let numbers: Vec<_> = numbered.iter().filter_map(|target| target.site.sample).collect();
        assert_eq!(numbers.iter().map(|sample| sample.number).collect::<Vec<_>>(), [0, 0, 1, 2]);
        assert_eq!(numbers.iter().map(|sample| sample.site.producer).collect::<Vec<_>>(), [0, 0, 0, 1]);
    }

    #[test]
    fn more_ways_than_the_table_has_room_for_are_refused() {
        let mut sites = SampleSites::default();
        let targets: Vec<_> = (0..=i64::from(MAX_SITES)).map(|value| target("a", value)).collect();
        assert!(sites.number(&targets[..MAX_SITES as usize]).is_ok());
        assert!(matches!(sites.number(&targets), Err(Error::ManySampleSites)));
    }
}
