module pumasi.test/init

go 1.26.0
