"""Four joins that every book on streams has. By hand: `millstream run examples/textbook.py --log sqlite:LOG`.

`millstream explain examples/textbook.py` says what each of them keeps, and for how long.
"""

from millstream import Pipeline

book = Pipeline("textbook", log="sqlite:textbook.db", to="sqlite:textbook.views.db")

# 1. What was searched and what was clicked, within the hour.
searches = book.stream("searches", "id long, words string, at timestamp", time="at", delay="10 seconds")
clicks = book.stream("clicks", "search long, url string, at timestamp", time="at", delay="10 seconds")
book.view(
    "found",
    searches.join(
        clicks.select("search", "url", "at AS clicked"), on="id = search", within=("0 seconds", "1 hour")
    ).select("words", "url", "clicked"),
)

# 2. Activity with the profile that its user had at the time: a profile that changes later changes nothing.
activity = book.stream("activity", "user long, action string, at timestamp", time="at", delay="10 seconds")
profiles = book.table("profiles", "id long, name string", key="id")
book.view(
    "told",
    activity.join(profiles, on="user = id", how="left", as_of="at").select("user", "action", "at", "name"),
)

# 3. A timeline for each user: a tweet that is deleted leaves all of them, and so do the tweets of someone unfollowed.
tweets = book.table("tweets", "id long, author long, words string", key="id")
follows = book.table("follows", "follower long, followee long", key=["follower", "followee"])
book.view(
    "timelines",
    tweets.join(follows, on="author = followee").select("follower", "id", "author", "words"),
)

# 4. Advertisements that nobody clicked within ten minutes, said when the time is up.
shown = book.stream("impressions", "ad long, at timestamp", time="at", delay="10 seconds")
hits = book.stream("hits", "hit long, at timestamp", time="at", delay="10 seconds")
book.view(
    "missed",
    shown.join(hits.select("hit", "at AS hit_at"), on="ad = hit", how="left", within=("0 seconds", "10 minutes"))
    .where("hit IS NULL")
    .select("ad", "at"),
)
