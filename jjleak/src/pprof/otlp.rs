//! OTLP profiles, a descendant of pprof: the same tables, with indexes from 0 instead of IDs, and a profile
//! per type of value.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::profiles::v1development::{
    self as otlp, KeyValueAndUnit, Link, Profile, ProfilesDictionary, ResourceProfiles, ScopeProfiles, Stack,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use super::{proto, write};
use crate::profile;

/// Attribute key of a build ID (OpenTelemetry's semantic conventions for profiles).
const BUILD_ID: &str = "process.executable.build_id.gnu";

/// Encodes a profile as an OTLP export request, with these labels and the attributes of its process.
#[must_use]
pub fn otlp(profile: &profile::Profile, labels: &BTreeMap<String, String>) -> Vec<u8> {
    request(profile, labels).encode_to_vec()
}

fn request(profile: &profile::Profile, labels: &BTreeMap<String, String>) -> ExportProfilesServiceRequest {
    let message = write::encode(profile);
    let mut stacks = vec![Stack::default()];
    let samples = message.sample.iter().map(|sample| {
        let location_indices = sample.location_id.iter().map(|&id| index(id)).collect();
        stacks.push(Stack { location_indices });
        (last(&stacks), sample.value.as_slice())
    });
    let samples: Vec<_> = samples.collect();
    let profiles = message.sample_type.iter().enumerate().map(|(column, kind)| Profile {
        sample_type: Some(value_type(kind)),
        samples: samples.iter().filter_map(|(stack, values)| sample(*stack, values, column)).collect(),
        time_unix_nano: u64::try_from(message.time_nanos.saturating_sub(message.duration_nanos)).unwrap_or(0),
        duration_nano: u64::try_from(message.duration_nanos).unwrap_or(0),
        profile_id: identifier(profile, column),
        ..Profile::default()
    });
    let scope = InstrumentationScope {
        name: "jjleak".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_profiles =
        ScopeProfiles { scope: Some(scope), profiles: profiles.collect(), schema_url: String::new() };
    let resource = Resource { attributes: attributes(&profile.process, labels), ..Resource::default() };
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(resource),
            scope_profiles: vec![scope_profiles],
            schema_url: String::new(),
        }],
        dictionary: Some(dictionary(message, stacks)),
    }
}

/// A stack's value of one type; `None` if it is 0.
fn sample(stack: i32, values: &[i64], column: usize) -> Option<otlp::Sample> {
    let value = *values.get(column)?;
    (value != 0).then(|| otlp::Sample { stack_index: stack, values: vec![value], ..otlp::Sample::default() })
}

/// The tables of a message. The first entry of each is empty, as ID 0 is in pprof.
fn dictionary(message: proto::Profile, stacks: Vec<Stack>) -> ProfilesDictionary {
    let mut strings = message.string_table;
    strings.push(BUILD_ID.to_owned());
    let build_id_key = last(&strings);
    let mut attributes = vec![KeyValueAndUnit::default()];
    let mut mappings = vec![otlp::Mapping::default()];
    for mapping in &message.mapping {
        let build_id = usize::try_from(mapping.build_id).ok().and_then(|index| strings.get(index));
        let build_id = build_id.filter(|build_id| !build_id.is_empty()).cloned();
        let attribute_indices = build_id.map(|build_id| {
            let value = Some(text(build_id));
            attributes.push(KeyValueAndUnit { key_strindex: build_id_key, value, unit_strindex: 0 });
            last(&attributes)
        });
        mappings.push(otlp::Mapping {
            filename_strindex: string(mapping.filename),
            attribute_indices: attribute_indices.into_iter().collect(),
            ..otlp::Mapping::default()
        });
    }
    let functions = message.function.iter().map(|function| otlp::Function {
        name_strindex: string(function.name),
        system_name_strindex: string(function.system_name),
        filename_strindex: string(function.filename),
        start_line: 0,
    });
    let locations = message.location.iter().map(|location| otlp::Location {
        mapping_index: index(location.mapping_id),
        address: location.address,
        lines: location.line.iter().map(line).collect(),
        attribute_indices: Vec::new(),
    });
    ProfilesDictionary {
        function_table: [otlp::Function::default()].into_iter().chain(functions).collect(),
        location_table: [otlp::Location::default()].into_iter().chain(locations).collect(),
        mapping_table: mappings,
        link_table: vec![Link::default()],
        string_table: strings,
        attribute_table: attributes,
        stack_table: stacks,
    }
}

fn line(line: &proto::Line) -> otlp::Line {
    otlp::Line { function_index: index(line.function_id), line: line.line, column: 0 }
}

fn value_type(kind: &proto::ValueType) -> otlp::ValueType {
    otlp::ValueType { type_strindex: string(kind.r#type), unit_strindex: string(kind.unit) }
}

/// Attributes of the process, according to OpenTelemetry's semantic conventions.
fn attributes(process: &profile::ProcessInfo, labels: &BTreeMap<String, String>) -> Vec<KeyValue> {
    let own = [
        ("service.name", text(process.comm.clone())),
        ("process.pid", AnyValue { value: Some(Value::IntValue(process.pid.into())) }),
        ("process.executable.path", text(process.exe.clone())),
    ];
    let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
    // The user's labels take precedence.
    let own = own.filter(|(key, _)| !labels.contains_key(key));
    let labels = labels.iter().map(|(key, value)| (key.clone(), text(value.clone())));
    own.chain(labels)
        .map(|(key, value)| KeyValue { key, value: Some(value), ..KeyValue::default() })
        .collect()
}

fn text(text: String) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text)) }
}

/// A 16-byte identifier that depends only on the profile, so that a receiver recognizes a profile that is
/// sent again.
fn identifier(profile: &profile::Profile, column: usize) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let process = &profile.process;
    let what = format!("{} {} {} {column}", process.pid, process.start_time, profile.taken_at);
    Sha256::digest(what.as_bytes())[..16].to_vec()
}

/// IDs are assigned from 1 on without gaps.
fn index(id: u64) -> i32 {
    i32::try_from(id).unwrap_or(0)
}

fn string(index: i64) -> i32 {
    i32::try_from(index).unwrap_or(0)
}

/// Index of the last entry of a table.
fn last<T>(table: &[T]) -> i32 {
    i32::try_from(table.len() - 1).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    fn at<T>(table: &[T], index: i32) -> &T {
        &table[usize::try_from(index).unwrap()]
    }

    #[test]
    fn every_type_of_value_is_a_profile_with_the_same_stacks() {
        let profile = sample::profile();
        let request = request(&profile, &BTreeMap::new());
        let dictionary = request.dictionary.unwrap();
        let profiles = &request.resource_profiles[0].scope_profiles[0].profiles;
        let types = profiles.iter().map(|profile| profile.sample_type.unwrap());
        let types: Vec<_> = types
            .map(|kind| {
                [kind.type_strindex, kind.unit_strindex].map(|index| at(&dictionary.string_table, index))
            })
            .collect();
        let expected = super::super::SAMPLE_TYPES.map(|(name, unit)| [name, unit]);
        assert_eq!(types, expected);
        let sum = |column: usize| profiles[column].samples.iter().map(|sample| sample.values[0]).sum::<i64>();
        let (live, allocated) = (profile.live(), profile.allocated());
        let expected = [live.objects, live.bytes, allocated.objects, allocated.bytes];
        assert_eq!([0, 1, 2, 3].map(sum), expected.map(|value| i64::try_from(value).unwrap()));
    }

    #[test]
    fn names_files_lines_and_build_ids_are_found_through_the_tables() {
        let request = request(&sample::profile(), &BTreeMap::new());
        let tables = request.dictionary.unwrap();
        let name = |line: &otlp::Line| {
            let function = at(&tables.function_table, line.function_index);
            at(&tables.string_table, function.name_strindex).as_str()
        };
        let inlined = tables.location_table.iter().find(|location| location.lines.len() == 3).unwrap();
        assert_eq!(
            inlined.lines.iter().map(name).collect::<Vec<_>>(),
            ["new_node", "list_push", "grow_list"]
        );
        let libc = tables
            .mapping_table
            .iter()
            .find(|mapping| at(&tables.string_table, mapping.filename_strindex).ends_with("libc.so.6"));
        let attribute = at(&tables.attribute_table, libc.unwrap().attribute_indices[0]);
        assert_eq!(at(&tables.string_table, attribute.key_strindex), BUILD_ID);
        assert_eq!(attribute.value, Some(text("c0ffee".to_owned())));
    }

    #[test]
    fn the_first_entry_of_each_table_stands_for_nothing() {
        let tables = request(&sample::profile(), &BTreeMap::new()).dictionary.unwrap();
        assert_eq!(tables.string_table[0], "");
        assert_eq!(tables.mapping_table[0], otlp::Mapping::default());
        assert_eq!(tables.location_table[0], otlp::Location::default());
        assert_eq!(tables.function_table[0], otlp::Function::default());
        assert_eq!(tables.stack_table[0], Stack::default());
        assert_eq!(tables.attribute_table[0], KeyValueAndUnit::default());
        assert_eq!(tables.link_table, [Link::default()]);
    }

    #[test]
    fn labels_stand_before_what_the_process_says_of_itself() {
        let labels = BTreeMap::from([("service.name".to_owned(), "shop".to_owned())]);
        let request = request(&sample::profile(), &labels);
        let attributes = &request.resource_profiles[0].resource.as_ref().unwrap().attributes;
        let names: Vec<_> = attributes.iter().filter(|attribute| attribute.key == "service.name").collect();
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].value, Some(text("shop".to_owned())));
    }

    #[test]
    fn a_profile_has_the_same_identity_whenever_it_is_sent() {
        let profile = sample::profile();
        let request = || request(&profile, &BTreeMap::new());
        assert_eq!(request(), request());
        let ids = request().resource_profiles[0].scope_profiles[0]
            .profiles
            .iter()
            .map(|it| it.profile_id.clone())
            .collect::<std::collections::BTreeSet<_>>();
        assert_eq!(ids.len(), 4);
    }
}
