use super::*;
use crate::types::WorkerId;

#[test]
fn each_codec_has_its_row_and_codes_and_names_round_trip() {
    for (index, encoding) in Encoding::all().enumerate() {
        assert_eq!(encoding as usize, index + 1);
        assert_eq!(Encoding::from_code(encoding as u8), Some(encoding));
        let spec = CodecSpec::of(encoding);
        assert_eq!(spec.to_string().parse::<CodecSpec>(), Ok(spec));
        assert_eq!(CodecSpec::with_parameters(encoding, spec.parameters()), Ok(spec));
        assert_eq!(CodecSpec::from_wire(spec.code(), spec.parameters()), Ok(spec));
        assert!(encoding.row().parameters.len() <= CodecSpec::PARAMETERS_MAX);
    }
    assert_eq!([0, TABLE.len() as u8 + 1].map(Encoding::from_code), [None; 2]);
}

#[test]
fn an_unknown_name_is_refused_with_the_names_there_are() {
    let error = "fp8".parse::<CodecSpec>().unwrap_err().to_string();
    assert!(
        error.contains("none, fp16, bf16, int8, topk, int4, fp8_e4m3, fp8_e5m2, randomk, onebit, dithering, lossless"),
        "{error}"
    );
}

#[test]
fn parameters_that_a_codec_does_not_have_are_refused() {
    for (text, hint) in [
        ("fp16:", "for example fp16:feedback=1"),
        ("fp16:block=3", "for example fp16:feedback=1"),
        ("none:x", "none has no parameters"),
        ("none:feedback=1", "none has no parameters"),
        ("lossless:feedback=1", "lossless has no parameters"),
    ] {
        let error = text.parse::<CodecSpec>().unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
    }
    let error = CodecSpec::with_parameters(Encoding::BF16, &[1]).unwrap_err().to_string();
    assert!(error.contains("with 1 parameters instead of 0"), "{error}");
}

#[test]
fn a_parameter_is_read_and_shown_and_has_a_range() {
    let [plain, same, large]: [CodecSpec; 3] =
        ["int8", "int8:block=256", "int8: block = 1024"].map(|text| text.parse().unwrap());
    assert_eq!((plain, plain.to_string()), (same, "int8".to_owned()));
    assert_eq!((large.parameters(), large.to_string()), (&[1024][..], "int8:block=1024".to_owned()));
    for text in ["int8:block=31", "int8:block=4097"] {
        let error = text.parse::<CodecSpec>().unwrap_err().to_string();
        assert!(error.contains("block is") && error.contains("32 to 4096"), "{error}");
    }
    for text in ["int8:", "int8:block", "int8:block=x", "int8:block=-1", "int8:level=3", "int8:block=64,"] {
        let error = text.parse::<CodecSpec>().unwrap_err().to_string();
        assert!(error.contains("for example int8:block=256"), "{error}");
    }
    for parameters in [&[][..], &[0], &[256, 1]] {
        assert!(CodecSpec::with_parameters(Encoding::Int8, parameters).is_err(), "{parameters:?}");
    }
}

#[test]
fn parameters_that_do_not_go_together_are_refused() {
    assert!("dithering:s=17".parse::<CodecSpec>().is_ok() && "dithering:s=16,natural=1".parse::<CodecSpec>().is_ok());
    for text in ["dithering:s=17,natural=1", "dithering:natural=1,s=127"] {
        let error = text.parse::<CodecSpec>().unwrap_err().to_string();
        assert!(error.contains("s is at most 16"), "{error}");
    }
    assert_eq!("topk:count=7,k=5,count=0".parse(), "topk:k=5".parse::<CodecSpec>());
    assert_eq!("topk:warmup=9,count=7".parse::<CodecSpec>().unwrap().to_string(), "topk:count=7,warmup=9");
    for text in ["topk:k=5,count=7", "topk:count=7,k=5,warmup=1", "topk:k=10000,count=7"] {
        let error = text.parse::<CodecSpec>().unwrap_err().to_string();
        assert!(error.contains("count is 7") && error.contains("give k"), "{error}");
    }
    for text in ["topk:k=0", "topk:k=250001", "topk:count=16777217", "topk:warmup=1000001"] {
        assert!(text.parse::<CodecSpec>().is_err(), "{text}");
    }
    assert!(CodecSpec::from_wire(Encoding::TopK as u8, &[5, 7, 0]).is_err());
    assert!(CodecSpec::with_parameters(Encoding::Dithering, &[17, 1, 0]).is_err());
    assert!(CodecSpec::from_wire(Encoding::Dithering as u8, &[17, 1, 0]).is_err());
}

#[test]
fn error_feedback_is_a_parameter_of_every_codec_that_loses_something() {
    let exact = [Encoding::Plain, Encoding::Lossless];
    for encoding in Encoding::all().filter(|encoding| !exact.contains(encoding)) {
        let without = CodecSpec::of(encoding);
        let with: CodecSpec = format!("{encoding}: feedback = 1").parse().unwrap();
        assert_eq!((with.has_feedback(), with.without_feedback()), (true, without));
        assert_eq!(with.to_string(), format!("{encoding}:feedback=1"));
        assert_eq!(format!("{encoding}:feedback=0").parse(), Ok(without));
        assert_eq!(CodecSpec::from_wire(with.code(), with.parameters()), Ok(with));
        assert_eq!(CodecSpec::parameter_bytes_of(with.code()), Ok(with.parameter_bytes()));
        for text in ["feedback", "feedback=2", "feedback=true", "feedback="] {
            let error = format!("{encoding}:{text}").parse::<CodecSpec>().unwrap_err().to_string();
            assert!(error.contains("feedback=1"), "{error}");
        }
    }
    let large: CodecSpec = "int8:feedback=1,block=1024".parse().unwrap();
    assert_eq!((large.to_string().as_str(), large.parameters()), ("int8:block=1024,feedback=1", &[1024][..]));
}

#[test]
fn a_codec_with_feedback_may_have_a_momentum() {
    for text in [
        "topk:feedback=1,momentum=900000",
        "int8:block=64,feedback=1,nesterov=1",
        "bf16:stochastic=1,feedback=1,momentum=999999",
    ] {
        let spec: CodecSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        let words: Vec<u32> = spec.words().collect();
        assert_eq!(CodecSpec::from_wire(spec.code(), &words), Ok(spec));
        assert_eq!(CodecSpec::parameter_bytes_of(spec.code()), Ok(4 * words.len()));
        assert_eq!((spec.momentum().is_some(), spec.without_feedback().momentum()), (true, None));
        assert!(CodecSpec::from_wire(spec.code(), &words[..words.len() - 1]).is_err(), "{text}: a word is missing");
        assert!(CodecSpec::from_wire(spec.code() & !FEEDBACK, &words).is_err(), "{text}: no feedback");
    }
    for (text, problem) in [
        ("topk:momentum=900000", "no error feedback; add feedback=1"),
        ("topk:feedback=1,momentum=0", "momentum of 0 millionths"),
        ("topk:feedback=1,momentum=1000000", "give 1 to 999999"),
        ("topk:feedback=1,momentum=0.9", "sets no parameter"),
        ("none:momentum=5", "none has no parameters"),
    ] {
        let error = text.parse::<CodecSpec>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn codecs_that_round_may_do_so_by_chance() {
    let rounding = Encoding::all().filter(|encoding| encoding.row().flags & STOCHASTIC != 0);
    assert_eq!(rounding.map(|it| it.to_string()).collect::<Vec<_>>(), ["bf16", "int8", "int4", "fp8_e4m3", "fp8_e5m2"]);
    let spec: CodecSpec = "int4:feedback=1,stochastic=1,block=64".parse().unwrap();
    assert_eq!(spec.to_string(), "int4:block=64,stochastic=1,feedback=1");
    assert!(spec.is_stochastic() && spec.without_feedback().is_stochastic());
    assert_eq!(CodecSpec::from_wire(spec.code(), spec.parameters()), Ok(spec));
    for text in ["topk:stochastic=1", "fp16:stochastic=1", "bf16:stochastic=2"] {
        assert!(text.parse::<CodecSpec>().is_err(), "{text}");
    }
}

#[test]
fn a_wire_code_that_no_codec_has_is_refused() {
    let beyond = TABLE.len() as u8 + 1;
    let plain = Encoding::Plain as u8;
    let strange = [STOCHASTIC, FEEDBACK].map(|flag| [flag, flag | plain, flag | beyond]);
    let topk = STOCHASTIC | Encoding::TopK as u8;
    for code in [0, beyond, topk].into_iter().chain(strange.into_iter().flatten()) {
        assert!(CodecSpec::from_wire(code, &[]).is_err() && CodecSpec::parameter_bytes_of(code).is_err(), "{code}");
    }
}

#[test]
fn only_sums_and_means_of_f32_have_error_feedback() {
    let with: CodecSpec = "bf16:feedback=1".parse().unwrap();
    assert_eq!(DType::ALL.map(|dtype| with.for_dtype(dtype).has_feedback()), DType::ALL.map(|it| it == DType::F32));
    assert_eq!(with.for_dtype(DType::F64), CodecSpec::BF16);
    assert_eq!(with.for_dtype(DType::I32), CodecSpec::PLAIN);
    assert_eq!([Op::Sum, Op::Mean].map(|op| with.for_op(op)), [with; 2]);
    assert_eq!([Op::Min, Op::Max, Op::WeightedMean].map(|op| with.for_op(op)), [CodecSpec::BF16; 3]);
}

#[test]
fn elements_that_a_codec_does_not_narrow_travel_as_they_are() {
    for codec in [CodecSpec::F16, CodecSpec::BF16] {
        for dtype in DType::ALL {
            let is_wide = matches!(dtype, DType::F32 | DType::F64);
            let expected = if is_wide { codec } else { CodecSpec::PLAIN };
            assert_eq!(codec.for_dtype(dtype), expected, "{codec} of {dtype}");
        }
    }
}

#[test]
fn a_codec_is_not_applied_where_it_means_nothing() {
    let topk = CodecSpec::of(Encoding::TopK);
    for codec in [CodecSpec::BF16, topk] {
        assert_eq!(codec.for_op(Op::Broadcast { root: WorkerId(0) }), CodecSpec::PLAIN);
        assert_eq!([Op::Sum, Op::Mean, Op::WeightedMean].map(|op| codec.for_op(op)), [codec; 3]);
    }
    for encoding in [Encoding::TopK, Encoding::RandomK, Encoding::OneBit, Encoding::Dithering] {
        assert_eq!([Op::Min, Op::Max].map(|op| CodecSpec::of(encoding).for_op(op)), [CodecSpec::PLAIN; 2]);
    }
    assert_eq!([Op::Min, Op::Max].map(|op| CodecSpec::BF16.for_op(op)), [CodecSpec::BF16; 2]);
}
