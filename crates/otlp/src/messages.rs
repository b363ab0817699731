//! Spans and metrics as OTLP's messages.

use std::collections::BTreeMap;
use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as ProtoValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as ProtoKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as ProtoSpan, Status};

use crate::exposition::{Family, FamilyKind, Sample};
use crate::{Span, SpanKind, SpanStatus, Value};

/// Spans of the service with these attributes.
pub(crate) fn traces(resource: &[(String, String)], spans: &[Span]) -> ExportTraceServiceRequest {
    let spans = spans.iter().map(span).collect();
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource_message(resource)),
            scope_spans: vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }],
            ..ResourceSpans::default()
        }],
    }
}

/// Metrics of the service, counted since `began`.
pub(crate) fn metrics(
    resource: &[(String, String)],
    families: &[Family],
    (began, now): (SystemTime, SystemTime),
) -> ExportMetricsServiceRequest {
    let times = (nanos(began), nanos(now));
    let metrics = families.iter().map(|family| metric(family, times)).collect();
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource_message(resource)),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics,
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "firstflight".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

fn resource_message(attributes: &[(String, String)]) -> Resource {
    let attributes = attributes.iter().map(|(name, value)| text(name, value)).collect();
    Resource { attributes, ..Resource::default() }
}

fn span(span: &Span) -> ProtoSpan {
    let kind = match span.kind {
        SpanKind::Server => ProtoKind::Server,
        SpanKind::Client => ProtoKind::Client,
        SpanKind::Internal => ProtoKind::Internal,
    };
    let status = match span.status {
        SpanStatus::Unset => None,
        SpanStatus::Error => Some(Status { code: StatusCode::Error.into(), ..Status::default() }),
    };
    let attributes = span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    ProtoSpan {
        trace_id: span.trace.0.to_vec(),
        span_id: span.id.0.to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |parent| parent.0.to_vec()),
        name: span.name.to_string(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.began),
        end_time_unix_nano: nanos(span.ended),
        attributes,
        status,
        ..ProtoSpan::default()
    }
}

fn attribute(name: &str, value: &Value) -> KeyValue {
    let value = match value {
        Value::Text(value) => ProtoValue::StringValue(value.to_string()),
        Value::Whole(value) => ProtoValue::IntValue(*value),
        Value::Flag(value) => ProtoValue::BoolValue(*value),
    };
    key_value(name, value)
}

fn text(name: &str, value: &str) -> KeyValue {
    key_value(name, ProtoValue::StringValue(value.to_owned()))
}

fn key_value(name: &str, value: ProtoValue) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn metric(family: &Family, times: (u64, u64)) -> Metric {
    let points = |suffixes: &[&str]| -> Vec<NumberDataPoint> {
        let ours = |sample: &&Sample| suffixes.contains(&sample.suffix.as_str());
        family.samples.iter().filter(ours).map(|sample| point(sample, times)).collect()
    };
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match family.kind {
        FamilyKind::Counter => metric::Data::Sum(Sum {
            data_points: points(&["_total", ""]),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        FamilyKind::Histogram => metric::Data::Histogram(Histogram {
            data_points: histogram(&family.samples, times),
            aggregation_temporality: cumulative,
        }),
        FamilyKind::Gauge | FamilyKind::Other => {
            metric::Data::Gauge(Gauge { data_points: points(&["", "_info"]) })
        }
    };
    Metric {
        name: family.name.clone(),
        description: family.help.clone(),
        data: Some(data),
        ..Metric::default()
    }
}

fn point(sample: &Sample, (began, now): (u64, u64)) -> NumberDataPoint {
    NumberDataPoint {
        attributes: labels(&sample.labels),
        start_time_unix_nano: began,
        time_unix_nano: now,
        value: Some(number_data_point::Value::AsDouble(sample.value)),
        ..NumberDataPoint::default()
    }
}

/// A point for each set of labels. The text's buckets count all that is no greater; OTLP's count
/// what lies between two bounds.
fn histogram(samples: &[Sample], (began, now): (u64, u64)) -> Vec<HistogramDataPoint> {
    #[derive(Default)]
    struct Parts {
        buckets: Vec<(f64, u64)>,
        sum: f64,
        count: u64,
    }
    let mut all: BTreeMap<BTreeMap<String, String>, Parts> = BTreeMap::new();
    for sample in samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le").and_then(|bound| bound.parse().ok());
        let parts = all.entry(labels).or_default();
        match (sample.suffix.as_str(), bound) {
            ("_bucket", Some(bound)) => parts.buckets.push((bound, sample.value as u64)),
            ("_sum", _) => parts.sum = sample.value,
            ("_count", _) => parts.count = sample.value as u64,
            _ => {}
        }
    }
    let points = all.into_iter().map(|(attributes, mut parts)| {
        parts.buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        let counts = parts.buckets.iter().scan(0, |before, (_, count)| {
            let between = count.saturating_sub(*before);
            *before = *count;
            Some(between)
        });
        let bucket_counts = counts.collect();
        // The last bucket is bounded by nothing.
        let bounds = parts.buckets.iter().map(|(bound, _)| *bound).filter(|b| b.is_finite());
        HistogramDataPoint {
            attributes: labels(&attributes),
            start_time_unix_nano: began,
            time_unix_nano: now,
            count: parts.count,
            sum: Some(parts.sum),
            bucket_counts,
            explicit_bounds: bounds.collect(),
            ..HistogramDataPoint::default()
        }
    });
    points.collect()
}

fn labels(labels: &BTreeMap<String, String>) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| text(name, value)).collect()
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_exposition;

    #[test]
    fn cumulative_buckets_become_counts_between_bounds() {
        let text = "# TYPE h histogram\nh_bucket{k=\"a\",le=\"0.1\"} 2\nh_bucket{k=\"a\",le=\"1\"} 5\n\
            h_bucket{k=\"a\",le=\"+Inf\"} 6\nh_sum{k=\"a\"} 9.5\nh_count{k=\"a\"} 6\n\
            h_bucket{k=\"b\",le=\"+Inf\"} 0\nh_sum{k=\"b\"} 0\nh_count{k=\"b\"} 0\n";
        let families = parse_exposition(text).unwrap();
        let points = histogram(&families[0].samples, (1, 2));
        assert_eq!(points.len(), 2);
        assert_eq!(points[0].bucket_counts, [2, 3, 1]);
        assert_eq!(points[0].explicit_bounds, [0.1, 1.0]);
        assert_eq!((points[0].count, points[0].sum), (6, Some(9.5)));
    }

    #[test]
    fn a_counter_is_a_monotonic_sum_without_the_time_of_its_creation() {
        let text = "# TYPE c counter\nc_total 4\nc_created 1.7e9\n";
        let families = parse_exposition(text).unwrap();
        let Some(metric::Data::Sum(sum)) = metric(&families[0], (1, 2)).data else {
            panic!("no sum")
        };
        assert!(sum.is_monotonic && sum.data_points.len() == 1);
    }
}
